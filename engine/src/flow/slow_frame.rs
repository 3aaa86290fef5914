//! A frame that takes long is no silence.

use std::time::{Duration, Instant};

use super::{Flow, FlowConfig, LogIdentity, Timeout};
use crate::window::WindowLimits;

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "an Instant to count from cannot be had otherwise"
)]
fn a_server_that_is_sending_one_large_frame_is_not_silent() {
    let silence = Duration::from_secs(30);
    let start = Instant::now();
    let mut flow = Flow::new(FlowConfig {
        tables: Vec::new(),
        limits: WindowLimits { events: 1, bytes: 1 },
        max_message_bytes: None,
        confirm_timeout: silence,
        status_interval: silence,
        silence_timeout: silence,
        app_id: String::new(),
    });
    let identity = LogIdentity {
        system_id: "7".to_owned(),
        timeline: 1,
    };
    flow.session_started(identity, start);
    flow.handle_bytes(start + silence / 2);
    assert_eq!(flow.handle_timeout(start + silence), None);
    assert_eq!(
        flow.handle_timeout(start + silence / 2 + silence),
        Some(Timeout::Silence)
    );
}
