//! Dashboard and alerts name metrics that are there, and the runbook has every alert.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use walrelay_testbed::http_get;

use crate::world::World;

const ALERTS: &str = include_str!("../../config/prometheus-alerts.yml");
const DASHBOARD: &str = include_str!("../../config/grafana-dashboard.json");
const RUNBOOK: &str = include_str!("../../docs/runbook.md");

/// The metrics that a text names, without what Prometheus makes of counters and histograms.
fn named(text: &str) -> BTreeSet<&str> {
    text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_')
        .filter(|word| word.starts_with("walrelay_"))
        .map(|word| {
            ["_total", "_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| word.strip_suffix(suffix))
                .unwrap_or(word)
        })
        .collect()
}

#[tokio::test]
async fn every_metric_of_the_alerts_and_the_dashboard_is_served() -> Result<()> {
    let world = World::new().await?;
    let relay = world.running().await?;
    let metrics = http_get(relay.admin_port(), "/metrics").await?.body;
    let served: BTreeSet<_> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next())
        .collect();
    for (file, text) in [("alerts", ALERTS), ("dashboard", DASHBOARD)] {
        let named = named(text);
        ensure!(named.len() > 5, "{file}: {named:?}");
        let missing: Vec<_> = named.difference(&served).collect();
        ensure!(missing.is_empty(), "{file} name what is not served: {missing:?}");
    }
    Ok(())
}

#[test]
fn every_alert_has_an_entry_in_the_runbook() {
    let alerts = ALERTS
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let mut count = 0;
    for alert in alerts {
        assert!(
            RUNBOOK.contains(&format!("\n## {alert}\n")),
            "{alert} is not in the runbook"
        );
        let link = format!("docs/runbook.md#{}", alert.to_lowercase());
        assert!(ALERTS.contains(&link), "{alert} does not link to its entry");
        count += 1;
    }
    assert!(count > 5);
}

#[test]
fn the_dashboard_is_json_with_panels_that_do_not_overlap() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut places = BTreeSet::new();
    for panel in panels {
        let place = (panel["gridPos"]["x"].as_u64(), panel["gridPos"]["y"].as_u64());
        assert!(places.insert(place), "{} lies on another one", panel["title"]);
    }
    assert!(places.len() > 10);
}
