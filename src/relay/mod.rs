//! The running relay: both sides' connections, the flow between them, and what follows a fault.

mod backoff;
mod errands;
mod faults;
mod session;
mod side;
mod status;
mod supervisor;

pub use session::DatabaseSettings;
pub use status::{Delivery, SideState, SideStatus, Status};
pub use supervisor::{CareSettings, Ending, RelaySettings, run};
