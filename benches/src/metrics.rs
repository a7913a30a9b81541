//! Parses the metrics of a daemon, like a monitoring system.

/// Metrics at one moment.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Vec<(String, f64)>);

impl Metrics {
    pub(crate) fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Self(
            lines
                .filter_map(|line| line.rsplit_once(' '))
                .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
                .collect(),
        )
    }

    /// Sum of all series with this name, whatever their labels.
    pub(crate) fn sum(&self, name: &str) -> f64 {
        let matches =
            |series: &str| series.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('{'));
        self.0.iter().filter(|(series, _)| matches(series)).map(|(_, value)| value).sum()
    }

    /// Quantile of the samples that a histogram has counted since `before`, as Prometheus computes it: by linear
    /// interpolation within a bucket.
    pub(crate) fn quantile_since(&self, before: &Self, name: &str, share: f64) -> Option<f64> {
        let prefix = format!("{name}_bucket{{");
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for (series, value) in self.0.iter().filter(|(series, _)| series.starts_with(&prefix)) {
            let bound = series.split("le=\"").nth(1)?.split('"').next()?;
            let earlier = before.0.iter().find(|(old, _)| old == series).map_or(0.0, |(_, value)| *value);
            buckets.push((bound.parse().unwrap_or(f64::INFINITY), value - earlier));
        }
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        let all = buckets.last().filter(|(_, count)| *count > 0.0)?.1;
        let at = buckets.iter().position(|(_, count)| *count >= share * all)?;
        let (low, below) = if at == 0 { (0.0, 0.0) } else { buckets[at - 1] };
        let (high, count) = buckets[at];
        // The value is above the last finite bound: infinity does not understate it.
        if high.is_infinite() {
            return Some(high);
        }
        Some(low + (high - low) * (share * all - below) / (count - below))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_is_interpolated_between_bounds() {
        let text = |one, two, all| {
            format!(
                "# HELP h x\nh_bucket{{le=\"1\"}} {one}\nh_bucket{{le=\"2\"}} {two}\nh_bucket{{le=\"+Inf\"}} {all}\nh_sum 3\n"
            )
        };
        let (before, after) = (Metrics::parse(&text(10, 10, 10)), Metrics::parse(&text(60, 110, 110)));
        let quantile = |share| after.quantile_since(&before, "h", share);
        assert_eq!((quantile(0.25), quantile(0.75), quantile(1.0)), (Some(0.5), Some(1.5), Some(2.0)));
        assert_eq!(Metrics::parse(&text(0, 0, 5)).quantile_since(&Metrics::default(), "h", 0.5), Some(f64::INFINITY));
        assert_eq!(before.quantile_since(&before, "h", 0.5), None);
    }

    #[test]
    fn sum_covers_all_labels_of_one_name() {
        let metrics = Metrics::parse("a 1\na{b=\"c\"} 2\nab 4\n");
        assert_eq!(metrics.sum("a"), 3.0);
    }
}
