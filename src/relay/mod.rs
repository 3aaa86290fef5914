//! The running relay: both sides' connections, the flow between them, and what follows a fault.

mod backfill;
mod backoff;
mod broker;
mod errands;
mod faults;
mod held;
mod marker;
mod news;
mod refused;
mod replay;
mod retention;
mod session;
mod side;
mod sink;
mod standby;
mod status;
mod supervisor;
mod task;
mod wake;
mod watch;

pub use walrelay_engine::flow::Replayed;

pub use backfill::Totals;
pub use replay::{ReplayEnd, ReplayError, ReplayEvent, ReplaySettings, count, replay};
pub use retention::RetentionSettings;
pub use session::DatabaseSettings;
pub use sink::{Sink, SinkKind};
pub use status::{Delivery, Failures, RetentionStatus, Role, SideState, SideStatus, SlotSample, Status};
pub use supervisor::{CareSettings, Ending, RelaySettings, run};
