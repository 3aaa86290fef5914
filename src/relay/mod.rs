//! The running relay: both sides' connections, the flow between them, and what follows a fault.

mod backoff;
mod errands;
mod faults;
mod held;
mod marker;
mod session;
mod side;
mod standby;
mod status;
mod supervisor;
mod task;
mod wake;
mod watch;

pub use session::DatabaseSettings;
pub use status::{Delivery, Role, SideState, SideStatus, Status};
pub use supervisor::{CareSettings, Ending, RelaySettings, run};
