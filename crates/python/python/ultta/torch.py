"""A PyTorch module that stands where a model's classification head stood."""

from __future__ import annotations

from typing import Any, Literal

from ._extras import missing
from ._ultta import Head, Session, State, Step

try:
    import torch
except ImportError as error:
    raise missing("AdaptiveHead", "PyTorch", "torch") from error

__all__ = ["AdaptiveHead"]


class AdaptiveHead(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Image features in, adapted logits out: drops into the place of a linear or zero-shot head.

    Every call answers a batch and lets it teach, in ``train()`` and ``eval()`` mode alike, as long as ``adapt``
    is true; with ``adapt = False`` it only answers. The state travels in ``state_dict``. Features of any device
    and float type are taken and scaled to unit length; no gradient flows. ``last`` is the last step, with the
    zero-shot answers and the health.

    ``output``: "scores" (logits behind the answer) or "probs" (calibrated probabilities).
    """

    def __init__(
        self,
        head: Head,
        method: str = "ul_tta",
        preset: str = "default",
        *,
        output: Literal["scores", "probs"] = "scores",
        adapt: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__()
        if output not in ("scores", "probs"):
            raise ValueError(f"output: expected 'scores' or 'probs', got {output!r}")
        self.session = Session(head, method, preset, **settings)
        self.output = output
        self.adapt = adapt
        self.last: Step | None = None

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Features ``(…, dim)`` to scores ``(…, classes)``, on the features' device and of their type."""
        rows = features.detach().reshape(-1, features.shape[-1]).to("cpu", torch.float32)
        answer = self.session.step if self.adapt else self.session.predict
        self.last = answer(rows, normalize=True)
        values = self.last.scores if self.output == "scores" else self.last.probs
        found = torch.tensor(values, device=features.device, dtype=features.dtype)
        return found.reshape(*features.shape[:-1], -1)

    def get_extra_state(self) -> torch.Tensor:
        """The session's state as bytes, for ``state_dict``."""
        return torch.frombuffer(bytearray(self.session.state().to_bytes()), dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """Continues from the state in a ``state_dict``."""
        self.session.load(State.from_bytes(state.cpu().numpy().tobytes()))

    def extra_repr(self) -> str:
        """What stands between the brackets when the module is printed."""
        return f"{self.session!r}, output={self.output!r}, adapt={self.adapt}"
