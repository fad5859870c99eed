//! Ranges, ticks and numbers as a reader sees them.

/// Rough advance of a letter in the figures' font size, for laying out labels without measuring text.
pub(super) const LETTER: f64 = 6.6;

/// The finite values' range; never empty.
pub(super) fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values
        .filter(|v| v.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    match low.partial_cmp(&high) {
        Some(std::cmp::Ordering::Less) => (low, high),
        Some(std::cmp::Ordering::Equal) => (low - 0.5, high + 0.5),
        _ => (0.0, 1.0),
    }
}

pub(super) fn padded((low, high): (f64, f64)) -> (f64, f64) {
    let pad = 0.08 * (high - low);
    // an axis of shares or counts does not go below zero
    let floor = if low >= 0.0 { 0.0 } else { f64::NEG_INFINITY };
    ((low - pad).max(floor), high + pad)
}

/// Round numbers within a range, about `n` of them, and their distance.
pub(super) fn ticks((low, high): (f64, f64), n: usize) -> (Vec<f64>, f64) {
    let raw = (high - low) / n as f64;
    let magnitude = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|m| m * magnitude).into_iter().find(|s| *s >= raw * 0.999);
    let step = step.unwrap_or(10.0 * magnitude);
    let first = (low / step - 1e-9).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    ((first..=last).map(|i| i as f64 * step).collect(), step)
}

/// 1, 3, 10, 30, … within a range of logarithms to base 10: the logarithm and the number.
pub(super) fn log_ticks((low, high): (f64, f64)) -> Vec<(f64, String)> {
    let mut ticks = Vec::new();
    for power in low.floor() as i32..=high.ceil() as i32 {
        for digit in [1.0, 3.0] {
            let value = digit * 10f64.powi(power);
            if (low..=high).contains(&value.log10()) {
                ticks.push((value.log10(), number(value)));
            }
        }
    }
    ticks
}

pub(super) fn tick_label(tick: f64, step: f64) -> String {
    let tick = if tick.abs() < step * 1e-6 { 0.0 } else { tick };
    if tick.abs() >= 1e6 {
        return format!("{}M", number(tick / 1e6));
    }
    if tick.abs() >= 1e4 {
        return format!("{}k", number(tick / 1e3));
    }
    let fine = step.fract().abs() > 1e-9;
    let decimals = if fine {
        (-step.log10()).ceil().max(0.0) as usize + usize::from(step.log10().fract() != 0.0)
    } else {
        0
    };
    let label = format!("{tick:.decimals$}");
    if fine && label.contains('.') { trim(&label) } else { label }
}

/// A number for people: at most four significant digits or so, no trailing zeros.
pub(super) fn number(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 1000.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 0.1 || v == 0.0 => 2,
        _ => 4,
    };
    trim(&format!("{value:.decimals$}"))
}

fn trim(number: &str) -> String {
    if number.contains('.') {
        number.trim_end_matches('0').trim_end_matches('.').to_string()
    } else {
        number.to_string()
    }
}

/// A label cut to fit a width.
pub(super) fn shorten(text: &str, width: f64) -> String {
    let room = (width / LETTER).max(0.0) as usize;
    if text.chars().count() <= room {
        text.to_string()
    } else {
        text.chars().take(room.saturating_sub(1)).chain(['…']).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within() {
        for range in [(0.0, 1.0), (58.3, 64.9), (-3.0, 12.0), (0.0, 12_800.0), (0.0, 1e6), (0.001, 0.0034)] {
            let (ticks, _) = ticks(range, 5);
            assert!((2..=8).contains(&ticks.len()), "{range:?} {ticks:?}");
            assert!(ticks.iter().all(|t| (range.0 - 1e-9..=range.1 + 1e-9).contains(t)), "{ticks:?}");
        }
        assert_eq!(tick_label(2500.0, 2500.0), "2500");
        assert_eq!(tick_label(20_000.0, 5000.0), "20k");
        assert_eq!(tick_label(0.25, 0.25), "0.25");
        assert_eq!(tick_label(0.2, 0.2), "0.2");
        assert_eq!(number(-0.4), "-0.4");
        assert_eq!(number(61.25), "61.2");
    }
}
