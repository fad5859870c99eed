"""The laws of a session, seen from Python."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

import ultta
from conftest import Stream, simulate


def same(a: ultta.Step, b: ultta.Step) -> None:
    """Two steps agree bit for bit."""
    for name in ("ids", "labels", "prob", "prob_pred", "admitted", "unknown", "garbage", "probs", "scores"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    np.testing.assert_array_equal(a.zero_shot.scores, b.zero_shot.scores)


def test_a_step_answers_every_row(session: ultta.Session, stream: Stream) -> None:
    step = session.step(stream.features)
    n, classes = len(stream.features), stream.head.n_classes
    assert len(step) == n == session.seen
    assert step.labels.shape == step.prob.shape == step.admitted.shape == (n,)
    assert step.probs.shape == step.scores.shape == step.zero_shot.probs.shape == (n, classes)
    np.testing.assert_allclose(step.probs.sum(1), 1, atol=1e-5)
    np.testing.assert_array_equal(step.labels, step.scores.argmax(1))
    np.testing.assert_array_equal(step.ids, np.arange(n))
    np.testing.assert_allclose(step.probs[np.arange(n), step.labels], step.prob, rtol=1e-4)
    expected = stream.head.logit_scale * stream.features @ stream.head.prototypes.T
    np.testing.assert_allclose(step.zero_shot.scores, expected, atol=1e-3)
    np.testing.assert_array_equal(step.zero_shot.labels, step.zero_shot.scores.argmax(1))
    labels, probs = step.top(3)
    assert labels.shape == probs.shape == (n, 3)
    np.testing.assert_array_equal(labels[:, 0], step.labels)
    assert step.health.seen == n and step.health == session.health
    assert step[-1]["id"] == n - 1 and step[0]["class"] == step.names[0]
    with pytest.raises(IndexError):
        step[n]


def test_garbage_is_told_and_teaches_nothing(stream: Stream) -> None:
    session = ultta.Session(stream.head)
    features = stream.features[:40].copy()
    features[20] = -features[19]
    step = session.step(features)
    assert step.garbage.dtype == bool and step.garbage[20] and not step.admitted[20]
    assert session.health.garbage == step.health.garbage == step.garbage.sum()
    assert step[20]["garbage"] is True and step.to_frame()["garbage"][20]
    assert not ultta.Session(stream.head, spot_garbage=False).step(features).garbage.any()


def test_answers_are_read_only(session: ultta.Session, stream: Stream) -> None:
    step = session.step(stream.features[:4])
    for array in (step.labels, step.probs, step.scores, step.zero_shot.scores, stream.head.prototypes):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_scores_outlive_their_step(stream: Stream) -> None:
    scores = ultta.Session(stream.head).step(stream.features).zero_shot.scores
    expected = stream.head.zero_shot(stream.features)
    np.testing.assert_array_equal(scores, expected)


@pytest.mark.parametrize("size", [1, 7, 64, 600])
def test_blocks_of_any_size_give_the_same_bits(session: ultta.Session, stream: Stream, size: int) -> None:
    other = copy.copy(session)
    whole = session.step(stream.features)
    blocks = [other.step(stream.features[i : i + size]) for i in range(0, len(stream.features), size)]
    np.testing.assert_array_equal(whole.probs, np.concatenate([b.probs for b in blocks]))
    np.testing.assert_array_equal(whole.admitted, np.concatenate([b.admitted for b in blocks]))
    assert session.state() == other.state()


def test_long_blocks_are_worked_in_pieces_unseen() -> None:
    # More scores than are worked out between two looks at pending signals.
    stream = simulate(rows=3000, classes=900, dim=16)
    one, other = ultta.Session(stream.head), ultta.Session(stream.head)
    whole = one.step(stream.features)
    halves = other.step(stream.features[:1000]), other.step(stream.features[1000:])
    np.testing.assert_array_equal(whole.scores, np.concatenate([h.scores for h in halves]))
    np.testing.assert_array_equal(whole.probs, np.concatenate([h.probs for h in halves]))
    np.testing.assert_array_equal(whole.ids, np.arange(3000))
    assert one.state() == other.state()
    predicted = one.predict(stream.features)
    np.testing.assert_array_equal(predicted.ids, np.arange(3000, 6000))


def test_one_row_is_a_step_of_one(session: ultta.Session, stream: Stream) -> None:
    other = copy.copy(session)
    same(session.step(stream.features[0]), other.step(stream.features[:1]))


def test_predict_changes_nothing(session: ultta.Session, stream: Stream) -> None:
    session.step(stream.features[:300])
    before = session.state()
    predicted = session.predict(stream.features[300:])
    assert session.state() == before
    first = session.step(stream.features[300:301])
    np.testing.assert_array_equal(predicted.scores[0], first.scores[0])


def test_observe_is_a_step_without_answers(session: ultta.Session, stream: Stream) -> None:
    other = copy.copy(session)
    admitted = session.observe(stream.features)
    step = other.step(stream.features, keep_scores=False)
    np.testing.assert_array_equal(admitted, step.admitted)
    assert session.state() == other.state()
    with pytest.raises(RuntimeError, match="keep_scores=True"):
        step.probs


def test_marked_rows_do_not_teach(stream: Stream) -> None:
    session = ultta.Session(stream.head)
    step = session.step(stream.features, learn=np.zeros(len(stream.features), dtype=bool))
    assert not step.admitted.any()
    session.reset()
    session.learning = False
    assert not session.step(stream.features).admitted.any()


def test_views_in_both_shapes(stream: Stream) -> None:
    one, other = ultta.Session(stream.head), ultta.Session(stream.head)
    rows = stream.features[:50]
    views = np.stack([rows, rows[::-1]], axis=1)
    a = one.step(rows, views=views)
    b = other.step(rows, views=views.reshape(100, -1), view_counts=[2] * 50)
    same(a, b)
    with pytest.raises(ValueError, match="views"):
        one.step(rows, views=views.reshape(100, -1))
    with pytest.raises(ValueError, match="view counts"):
        one.step(rows, views=views.reshape(100, -1), view_counts=[-1] * 50)


def test_times_drive_updates(stream: Stream) -> None:
    session = ultta.Session(stream.head, advanced={"update_seconds": 1.0})
    session.step(stream.features[:200], times=np.arange(200.0))
    with pytest.raises(ValueError, match="times: expected 10, got 3"):
        session.step(stream.features[:10], times=[1, 2, 3])


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_copies_and_pickles_go_on_bit_for_bit(stream: Stream, preset: str) -> None:
    session = ultta.Session(stream.head, preset=preset)
    session.step(stream.features[:350])
    session.learning = False
    copies = [copy.copy(session), copy.deepcopy(session), pickle.loads(pickle.dumps(session))]
    session.learning = True
    for other in copies:
        assert not other.learning and other.head == stream.head
        other.learning = True
    expected = session.step(stream.features[350:])
    for other in copies:
        same(other.step(stream.features[350:]), expected)
        assert other.state() == session.state()


def test_heads_and_states_can_be_pickled(stream: Stream) -> None:
    head = pickle.loads(pickle.dumps(stream.head.with_metadata(encoder="toy")))
    assert head == stream.head and head.metadata["encoder"] == "toy" and hash(head) == hash(stream.head)
    state = ultta.Session(head).state()
    assert pickle.loads(pickle.dumps(state)) == state
    assert "session.counts" in state and not state["session.counts"].any()
    assert len(state.keys()) == len(state) and state.metadata["method"] == "ul_tta"
    with pytest.raises(KeyError):
        state["nothing"]


def test_saved_and_loaded(session: ultta.Session, stream: Stream, tmp_path: Path) -> None:
    path = tmp_path / "session.safetensors"
    session.step(stream.features[:400])
    session.save(path)
    expected = session.step(stream.features[400:])
    resumed = ultta.Session.resume(stream.head, path)
    assert resumed.config == session.config
    same(resumed.step(stream.features[400:]), expected)
    session.load(str(path))
    assert session.seen == 400
    same(session.step(stream.features[400:]), expected)
    session.reset()
    assert session.seen == 0
    session.load(ultta.State.load(path))
    assert session.seen == 400


def test_head_files(stream: Stream, tmp_path: Path) -> None:
    stream.head.save(tmp_path / "head.safetensors")
    head = ultta.Head.load(tmp_path / "head.safetensors")
    assert head == stream.head and head.classes == stream.head.classes
    assert ultta.Head.from_bytes(head.to_bytes()) == head
    assert head.with_logit_scale(5).logit_scale == 5 and head != head.with_logit_scale(5)


def test_reset_is_a_new_session(session: ultta.Session, stream: Stream) -> None:
    fresh = copy.copy(session)
    session.step(stream.features)
    session.reset()
    same(session.step(stream.features), fresh.step(stream.features))


def test_merge_adds_evidence(stream: Stream) -> None:
    a, b, empty = (ultta.Session(stream.head) for _ in range(3))
    a.observe(stream.features[:300])
    b.observe(stream.features[300:])
    before = a.state()
    a.merge(empty)
    assert a.state() == before
    merged = a.state().merge(b.state())
    a.merge(b)
    assert a.state()["evidence.seen"].tolist() == merged["evidence.seen"].tolist()
    assert a.state()["evidence.seen"].max() == 600
    with pytest.raises(ValueError, match="another configuration"):
        a.merge(ultta.Session(stream.head, preset="paper"))
    with pytest.raises(TypeError, match="expected a State, a Session or the path"):
        a.merge(3)
    with pytest.raises(ValueError, match="count twice"):
        a.merge(b, a)


def test_feedback_by_index_and_name(stream: Stream) -> None:
    session = ultta.Session(stream.head)
    step = session.step(stream.features)
    assert session.feedback(int(step.ids[0]), int(stream.labels[0])) == 1
    assert session.feedback(step.ids[100:200], stream.labels[100:200]) == 100
    assert session.feedback([5, 6], ["class 1", "class 2"]) == 2
    assert session.health.tau_cal != 1
    assert ultta.Session(stream.head, "zero_shot").feedback(0, 1) == 0


def test_settings_in_every_spelling(stream: Stream) -> None:
    spellings = [
        ultta.Session(stream.head, gate={"keep": 0.5}, guard={"enabled": False}),
        ultta.Session(stream.head, gate__keep=0.5, guard__enabled=False),
        ultta.Session(stream.head, **{"gate.keep": np.float64(0.5), "guard.enabled": False}),
        ultta.Session.from_config(stream.head, "[method.ul_tta.gate]\nkeep = 0.5\n[guard]\nenabled = false"),
    ]
    for session in spellings:
        assert session.config == spellings[0].config
        assert session.config["method"]["ul_tta"]["gate"]["keep"] == 0.5
        assert session.config["guard"]["enabled"] is False
    start = np.full(7, 1 / 7)
    advanced = {"prior_kl_max": float("inf"), "prior_half_lives": [4, 16.0]}
    config = ultta.Session(stream.head, prior={"start": start}, advanced=advanced).config["method"]["ul_tta"]
    assert config["prior"]["start"] == start.tolist()
    assert config["advanced"]["prior_half_lives"] == [4, 16] and config["advanced"]["prior_kl_max"] == float("inf")


def test_config_files(stream: Stream, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(ultta.default_config())
    session = ultta.Session.from_config(stream.head, path, advanced__update_every=64)
    assert session.config["method"]["ul_tta"]["advanced"]["update_every"] == 64
    assert "update_every = 64" in session.config_toml
    with pytest.raises(FileNotFoundError):
        ultta.Session.from_config(stream.head, tmp_path / "none.toml")


def test_the_registry_names_every_method(stream: Stream) -> None:
    cards = {card["name"]: card for card in ultta.methods()}
    assert {"ul_tta", "zero_shot"} <= set(cards)
    assert ultta.Session(stream.head, "zero-shot").method == cards["zero_shot"]
    for card in cards.values():
        assert card["summary"] and card["readout"] in ("before_observe", "after_observe")


def test_heads_of_several_anchors(stream: Stream) -> None:
    rows, classes = stream.features[:200], stream.head.classes
    head = ultta.Head.from_anchors(rows, stream.labels[:200], classes, 20.0)
    means = np.stack([rows[stream.labels[:200] == c].mean(0) for c in range(7)])
    np.testing.assert_allclose(head.prototypes, means / np.linalg.norm(means, axis=1, keepdims=True), atol=1e-5)
    mixed = stream.head.with_anchors(rows, stream.labels[:200], own=1e6)
    np.testing.assert_allclose(mixed.prototypes, stream.head.prototypes, atol=1e-3)
    with pytest.raises(ValueError, match="labels: expected 200, got 3"):
        ultta.Head.from_anchors(rows, [0, 1, 2], classes)
    with pytest.raises(ValueError, match="not below the number of classes"):
        ultta.Head.from_anchors(rows, np.full(200, -1), classes)
    scaled = ultta.Head.from_text_features(stream.head.prototypes * 3, classes, 20.0, normalize=True)
    np.testing.assert_allclose(scaled.prototypes, stream.head.prototypes, atol=1e-6)


def test_anchors_may_be_kept_apart() -> None:
    prompts = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.6, 0.8], [0.8, 0.6]]])
    z = np.array([0.8, 0.6])
    apart = ultta.Head.from_text_features(prompts, ["cat", "dog"], 10.0, anchors_apart=2.0)
    wanted = np.log(np.exp(2 * 10 * prompts @ z).mean(1)) / 2
    np.testing.assert_allclose(apart.zero_shot(z)[0], wanted, rtol=1e-5)
    folded = ultta.Head.from_text_features(prompts, ["cat", "dog"], 10.0)
    np.testing.assert_array_equal(apart.prototypes, folded.prototypes)
    by_label = ultta.Head.from_anchors(prompts.reshape(4, 2), [0, 0, 1, 1], ["cat", "dog"], 10.0, anchors_apart=2.0)
    assert by_label == apart != folded
    with pytest.raises(ValueError, match="several anchors per class"):
        ultta.Head.from_text_features(np.eye(2), ["cat", "dog"], anchors_apart=1.0)


def test_per_class_figures(stream: Stream) -> None:
    session = ultta.Session(stream.head)
    session.observe(stream.features)
    figures = session.per_class()
    assert all(len(values) == 7 for values in figures.values())
    assert abs(figures["prior"].sum() - 1) < 1e-6


def test_everything_shows_itself(stream: Stream) -> None:
    head = ultta.Head.from_text_features(np.eye(2), ["<b>", "dog & cat"])
    session = ultta.Session(head)
    step = session.step(np.tile(np.eye(2), (10, 1)))
    assert "&lt;b&gt;" in head._repr_html_() and "dog &amp; cat" in step._repr_html_()
    for thing in (head, session, step, session.health, session.state()):
        html = thing._repr_html_()
        assert html.startswith("<table>") and html.endswith("</table>")
        assert type(thing).__name__ in repr(thing)
    assert "the first 10 of 20 rows" in step._repr_html_()
    assert session.health.to_dict()["standing"] == "healthy"
    assert "alarms_ready=False" in repr(session.health) and "alarms_ready</th><td>False</td>" in session.health._repr_html_()
    assert repr(step.zero_shot) == "ZeroShot(20 rows)"
