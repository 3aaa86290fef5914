//! Takes events the way that they have through the engine: replication frames are decoded, mapped, routed, encoded and written as
//! AMQP frames; acks are decoded and settled in window, history and ledger; positions are reported, marks handed out.
//!
//! No socket and no server: `scripts/test-instructions` runs it under callgrind, which counts what [`relay`] does and nothing else.

mod frames;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use walrelay_engine::Lsn;
use walrelay_engine::PgTimestamp;
use walrelay_engine::amqp::{Frame, Method};
use walrelay_engine::event::{AfterPublish, Columns, Content, OutboxTable, Route};
use walrelay_engine::flow::{Flow, FlowConfig, Intake, LogIdentity};
use walrelay_engine::marks::{MarkSettings, Marked};
use walrelay_engine::policy::Policies;
use walrelay_engine::route::Template;
use walrelay_engine::window::WindowLimits;

use frames::Source;

/// RabbitMQ's defaults.
const FRAME_MAX: u32 = 131_072;
const MAX_MESSAGE_BYTES: usize = 128 * 1024 * 1024;

/// As much as the relay hands to the socket at once.
const PUBLISH_TARGET: usize = 128 * 1024;

/// So many messages the broker acks at once, about as RabbitMQ does under load.
const ACKED_TOGETHER: u64 = 20;

const USAGE: &str = "usage: walrelay-instructions CASE EVENTS [--slowed]\n\
    cases: one-row, thousand, single-acks, strict, mark";

/// What is run.
#[derive(Debug, Clone, Copy)]
struct Case {
    rows_per_transaction: u64,
    acked_together: u64,
    strict: bool,
    after_publish: AfterPublish,
}

impl Case {
    fn named(name: &str) -> Option<Case> {
        let plain = Case {
            rows_per_transaction: 1,
            acked_together: ACKED_TOGETHER,
            strict: false,
            after_publish: AfterPublish::Keep,
        };
        Some(match name {
            "one-row" => plain,
            "thousand" => Case {
                rows_per_transaction: 1_000,
                ..plain
            },
            "single-acks" => Case {
                acked_together: 1,
                ..plain
            },
            "strict" => Case {
                strict: true,
                ..plain
            },
            "mark" => Case {
                after_publish: AfterPublish::Mark,
                ..plain
            },
            _ => return None,
        })
    }

    fn config(self) -> Result<FlowConfig, Box<dyn Error>> {
        Ok(FlowConfig {
            tables: vec![OutboxTable {
                schema: frames::SCHEMA.to_owned(),
                name: frames::TABLE.to_owned(),
                columns: Columns::default(),
                content: Content::default(),
                route: Route {
                    exchange: Template::parse("outbox")?,
                    routing_key: Template::parse("{aggregate_type}.{event_type}")?,
                    rules: Vec::new(),
                },
                after_publish: Some(self.after_publish),
            }],
            messages: None,
            ignore_tables: Vec::new(),
            limits: WindowLimits {
                events: 1_000,
                bytes: 32 * 1024 * 1024,
            },
            max_message_bytes: None,
            confirm_timeout: Duration::from_secs(30),
            status_interval: Duration::from_secs(1),
            silence_timeout: Duration::from_secs(30),
            app_id: "walrelay".to_owned(),
            policies: Policies::default(),
            keep_rows: false,
            strict: self.strict,
            max_rate: None,
            marks: MarkSettings {
                batch: 1_000,
                interval: Duration::from_secs(1),
            },
        })
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (case, events, slowed) = match arguments[..] {
        [case, events] => (Case::named(case), events.parse().ok(), false),
        [case, events, "--slowed"] => (Case::named(case), events.parse().ok(), true),
        _ => (None, None, false),
    };
    let (Some(case), Some(events)) = (case, events) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(case, events, slowed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("walrelay-instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Takes so many events through. `slowed` copies every frame that is read into memory of its own: about the smallest thing that must
/// not creep in.
fn run(case: Case, events: u64, slowed: bool) -> Result<(), Box<dyn Error>> {
    // Time stands still: what is due every second would make the count depend on the machine.
    let now = Instant::now();
    let mut flow = Flow::new(case.config()?);
    flow.tell_time(PgTimestamp::new(frames::COMMIT_TIME + 900));
    let identity = LogIdentity {
        system_id: 1,
        timeline: 1,
    };
    flow.session_started(identity, Lsn::INVALID, now);
    flow.link_up(FRAME_MAX, MAX_MESSAGE_BYTES, now);
    let mut source = Source::new(events, case.rows_per_transaction);
    relay(&mut flow, &mut source, events, case.acked_together, slowed, now)?;
    match (flow.in_flight(), flow.durable()) {
        (0, Some(durable)) if durable == source.end() => Ok(()),
        (in_flight, durable) => {
            Err(format!("{in_flight} events are unsettled, the durable LSN is {durable:?}").into())
        }
    }
}

/// The relay's loop, until all events are settled. What callgrind counts, by this name.
#[inline(never)]
fn relay(
    flow: &mut Flow,
    source: &mut Source,
    events: u64,
    acked_together: u64,
    slowed: bool,
    now: Instant,
) -> Result<(), Box<dyn Error>> {
    let (mut out, mut acks) = (Vec::new(), Vec::new());
    let (mut published, mut acked) = (0, 0);
    while acked < events {
        while let Some(frame) = source.frame() {
            let copy;
            let frame = match slowed {
                true => {
                    copy = frame.to_vec();
                    &copy[..]
                }
                false => frame,
            };
            match flow.handle_stream(frame, now)? {
                Intake::Taken => source.taken(),
                Intake::NoRoom => break,
            }
        }
        loop {
            out.clear();
            match flow.poll_publish(&mut out, PUBLISH_TARGET, now) {
                0 => break,
                count => published += count as u64,
            }
        }
        acks.clear();
        while acked < published {
            acked = published.min(acked + acked_together);
            frames::ack(&mut acks, acked, acked_together > 1);
        }
        answer(flow, &acks, now)?;
        flow.poll_status(now);
        if let Some(batch) = flow.poll_marks(now) {
            let rows = batch.tables.iter().map(|ids| ids.len() as u64).sum();
            let marked = Marked {
                rows,
                ..Marked::default()
            };
            flow.handle_marked(batch, marked, now);
        }
    }
    Ok(())
}

/// Hands the broker's frames to the flow.
fn answer(flow: &mut Flow, mut acks: &[u8], now: Instant) -> Result<(), Box<dyn Error>> {
    while let Some((frame, size)) = Frame::decode(acks, FRAME_MAX)? {
        if let Method::BasicAck {
            delivery_tag,
            multiple,
        } = Method::decode(frame.payload)?
        {
            flow.handle_ack(delivery_tag, multiple, now)?;
        }
        acks = &acks[size..];
    }
    Ok(())
}
