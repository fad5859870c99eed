//! What a method did to one class, for reports.

/// What a method did to one class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClassDrift {
    /// How far the prototype moved: ‖t_c − μ_c‖, or what corresponds to it in the method.
    pub movement: f64,
    /// The class prior π_c.
    pub prior: f64,
    /// Evidence gathered for the class, in samples.
    pub evidence: f64,
}

impl ClassDrift {
    /// One for each class that has a prior. What a method does not learn is 0.
    pub(crate) fn of_classes(movements: &[f64], prior: &[f64], evidence: &[f64]) -> Vec<Self> {
        let get = |v: &[f64], c: usize| v.get(c).copied().unwrap_or(0.0);
        let one = |(c, &prior)| ClassDrift { movement: get(movements, c), prior, evidence: get(evidence, c) };
        prior.iter().enumerate().map(one).collect()
    }
}
