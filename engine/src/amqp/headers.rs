//! The entries of a header table that are no fixed part of a message: a JSON object's, straight into AMQP's encoding.

use std::fmt::{self, Display};
use std::io::Write as _;

use super::constants::{FRAME_MAX, header};
use super::error::EncodeError;
use super::numbers;
use super::table::MAX_DEPTH;
use super::writer::{put_u32, with_length};
use crate::json::{Cursor, Depth, JsonFault};

/// Headers of more bytes go into no frame that we ever ask for.
const LARGEST: u32 = FRAME_MAX;

/// Entries of a header table, encoded, each name once; cleared and filled again for every message.
#[derive(Debug, Clone, Default)]
pub struct HeaderEntries {
    bytes: Vec<u8>,
    /// Used only while names are compared.
    places: Vec<Place>,
}

/// Encoded entries, to be copied into a message's header table.
#[derive(Clone, Copy, Default)]
pub struct EncodedHeaders<'a>(&'a [u8]);

/// What becomes of a name that stands in an object of headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameUse {
    /// It joins the headers.
    Joins,
    /// It is left out, since the message has a header of its own of this name.
    Overridden,
    /// It is left out, since it is passed on otherwise.
    PassedOn,
}

/// Why a JSON object cannot be a message's headers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeadersFault {
    /// It is another value, or no JSON at all.
    #[error("it is no JSON object")]
    NotAnObject,
    /// It is no JSON, or has half a pair of surrogates.
    #[error("it is no JSON from byte {at} on")]
    NotJson {
        /// Bytes before the fault.
        at: usize,
    },
    /// Objects and arrays are nested too deep.
    #[error("it is nested more than {limit} deep")]
    TooDeep {
        /// The nesting allowed.
        limit: u8,
    },
    /// A name is longer than AMQP has room for.
    #[error("a name in it has {length} bytes, AMQP allows 255: shorten it")]
    NameTooLong {
        /// Its bytes.
        length: usize,
    },
    /// RabbitMQ would close the channel, or ignore what it says.
    #[error("{name} in it must be an array of strings of at most 255 bytes")]
    Routes {
        /// `CC` or `BCC`.
        name: &'static str,
    },
    /// They go into no frame.
    #[error("it makes headers of more than {limit} bytes")]
    TooLarge {
        /// The bytes allowed.
        limit: u32,
    },
}

/// Where an entry is among the bytes.
#[derive(Debug, Clone, Copy)]
struct Place {
    start: usize,
    end: usize,
    name_len: usize,
}

impl From<JsonFault> for HeadersFault {
    fn from(fault: JsonFault) -> Self {
        Self::NotJson { at: fault.at }
    }
}

/// The size only: headers may hold what must not reach a log.
impl fmt::Debug for EncodedHeaders<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EncodedHeaders({} bytes)", self.0.len())
    }
}

impl<'a> EncodedHeaders<'a> {
    pub(super) const fn bytes(self) -> &'a [u8] {
        self.0
    }
}

impl NameUse {
    /// Whether the name joins the headers.
    #[must_use]
    pub const fn joins(self) -> bool {
        matches!(self, Self::Joins)
    }

    /// What becomes of a name beside the headers that every message has.
    #[must_use]
    pub fn of(name: &[u8]) -> Self {
        let is_among = |names: &[&str]| names.iter().any(|own| own.as_bytes() == name);
        if is_among(&header::OWN) {
            Self::Overridden
        } else if is_among(&header::TRACE) {
            Self::PassedOn
        } else {
            Self::Joins
        }
    }
}

impl HeaderEntries {
    /// Forgets all entries and keeps the capacity, but for what only a text took that fits into no frame.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes
            .shrink_to(2 * usize::try_from(LARGEST).unwrap_or(usize::MAX / 2));
    }

    /// The entries so far.
    #[must_use]
    pub fn encoded(&self) -> EncodedHeaders<'_> {
        EncodedHeaders(&self.bytes)
    }

    /// Adds a text, whose name must not be there yet, or be one that an object added later may replace.
    ///
    /// # Errors
    /// A name of more than 255 bytes.
    pub fn text(&mut self, name: impl Display, value: impl Display) -> Result<(), EncodeError> {
        let start = self.bytes.len();
        self.bytes.push(0);
        append(&mut self.bytes, name);
        let length = self.bytes.len().saturating_sub(start + 1);
        let Ok(octet) = u8::try_from(length) else {
            self.bytes.truncate(start);
            let field = "a header's name";
            return Err(EncodeError::ShortStringTooLong { field, length });
        };
        if let Some(place) = self.bytes.get_mut(start) {
            *place = octet;
        }
        self.bytes.push(b'S');
        with_length(&mut self.bytes, "a header", |out| {
            append(out, value);
            Ok(())
        })
    }

    /// Adds the members of a JSON object, each of the type that it has there: strings as `S`, `true` and `false` as `t`,
    /// `null` as `V`, objects as `F`, arrays as `A`; numbers without fraction and exponent as `l`, and others as `d`, if that
    /// type holds exactly what is written, else as the text of what is written. Of equal names the last one counts, and it
    /// replaces those that are there already. Returns how many names were [overridden](NameUse::Overridden).
    ///
    /// # Errors
    /// Why it cannot be headers. What was added before stays, and more may.
    pub fn object(&mut self, json: &str, use_of: impl Fn(&[u8]) -> NameUse) -> Result<u64, HeadersFault> {
        let mut json = Cursor::new(json);
        if json.peek() != Some(b'{') {
            return Err(HeadersFault::NotAnObject);
        }
        let mut overridden = 0;
        self.members(&mut json, 0, |entries, start, json| {
            let named = use_of(entries.name_at(start));
            if named == NameUse::Joins {
                let is_routes = |name: &&&str| entries.name_at(start) == name.as_bytes();
                let routes = header::ROUTES.iter().find(is_routes).copied();
                let value = entries.bytes.len();
                entries.value(json, 0)?;
                return match routes {
                    Some(name) if !entries.is_list_of_keys(value) => Err(HeadersFault::Routes { name }),
                    _ => Ok(()),
                };
            }
            overridden += u64::from(named == NameUse::Overridden);
            entries.bytes.truncate(start);
            json.pass(Depth::DOCUMENT)?;
            Ok(())
        })?;
        json.end()?;
        self.drop_replaced(0);
        Ok(overridden)
    }

    /// Reads an object and adds its members. `add` is called once a name stands at the place it is told, and has to add the
    /// value behind it.
    fn members(
        &mut self,
        json: &mut Cursor<'_>,
        depth: u8,
        mut add: impl FnMut(&mut Self, usize, &mut Cursor<'_>) -> Result<(), HeadersFault>,
    ) -> Result<(), HeadersFault> {
        debug_assert!(depth <= MAX_DEPTH, "checked where it is entered");
        json.expect(b'{', "an object")?;
        if json.take(b'}') {
            return Ok(());
        }
        loop {
            let start = self.bytes.len();
            self.name(json)?;
            json.colon()?;
            add(self, start, json)?;
            if u32::try_from(self.bytes.len()).is_ok_and(|length| length > LARGEST) {
                return Err(HeadersFault::TooLarge { limit: LARGEST });
            }
            if !json.has_more(b'}')? {
                return Ok(());
            }
        }
    }

    /// Adds a name: a length octet, then the bytes.
    fn name(&mut self, json: &mut Cursor<'_>) -> Result<(), HeadersFault> {
        let at = self.bytes.len();
        self.bytes.push(0);
        json.key()?.append_to(&mut self.bytes)?;
        let length = self.bytes.len().saturating_sub(at + 1);
        let octet = u8::try_from(length).map_err(|_| HeadersFault::NameTooLong { length })?;
        if let Some(place) = self.bytes.get_mut(at) {
            *place = octet;
        }
        Ok(())
    }

    /// Adds a value with its type, `depth` tables and arrays deep.
    fn value(&mut self, json: &mut Cursor<'_>, depth: u8) -> Result<(), HeadersFault> {
        match json.peek() {
            Some(b'"') => self.measured(b'S', |entries| {
                Ok(json.string()?.append_to(&mut entries.bytes)?)
            }),
            Some(b'-' | b'0'..=b'9') => {
                let number = json.number()?;
                numbers::append(&mut self.bytes, number);
                Ok(())
            }
            Some(b'{') => {
                let depth = deeper(depth)?;
                self.measured(b'F', |entries| {
                    let start = entries.bytes.len();
                    entries.members(json, depth, |entries, _, json| entries.value(json, depth))?;
                    entries.drop_replaced(start);
                    Ok(())
                })
            }
            Some(b'[') => {
                let depth = deeper(depth)?;
                self.measured(b'A', |entries| entries.items(json, depth))
            }
            _ => {
                match json.word()? {
                    Some(value) => self.bytes.extend_from_slice(&[b't', u8::from(value)]),
                    None => self.bytes.push(b'V'),
                }
                Ok(())
            }
        }
    }

    fn items(&mut self, json: &mut Cursor<'_>, depth: u8) -> Result<(), HeadersFault> {
        json.expect(b'[', "an array")?;
        if json.take(b']') {
            return Ok(());
        }
        loop {
            self.value(json, depth)?;
            if u32::try_from(self.bytes.len()).is_ok_and(|length| length > LARGEST) {
                return Err(HeadersFault::TooLarge { limit: LARGEST });
            }
            if !json.has_more(b']')? {
                return Ok(());
            }
        }
    }

    /// Adds a type, a 32-bit length, and what it is the length of.
    fn measured(
        &mut self,
        kind: u8,
        content: impl FnOnce(&mut Self) -> Result<(), HeadersFault>,
    ) -> Result<(), HeadersFault> {
        self.bytes.push(kind);
        let at = self.bytes.len();
        put_u32(&mut self.bytes, 0);
        let start = self.bytes.len();
        content(self)?;
        let length = self.bytes.len().saturating_sub(start);
        let length = u32::try_from(length).map_err(|_| HeadersFault::TooLarge { limit: LARGEST })?;
        if let Some(place) = self.bytes.get_mut(at..start) {
            place.copy_from_slice(&length.to_be_bytes());
        }
        Ok(())
    }

    /// The name of the entry that starts there.
    fn name_at(&self, start: usize) -> &[u8] {
        let length = self.bytes.get(start).copied().unwrap_or_default();
        let name = start + 1..start + 1 + usize::from(length);
        self.bytes.get(name).unwrap_or_default()
    }

    /// Whether the value that starts there is an array of strings that can be routing keys.
    fn is_list_of_keys(&self, start: usize) -> bool {
        let Some((b'A', mut items)) = self.bytes.get(start..).and_then(split_value) else {
            return false;
        };
        while !items.is_empty() {
            let Some((b'S', key)) = split_value(items) else {
                return false;
            };
            if key.len() > 255 {
                return false;
            }
            items = items.get(key.len() + 5..).unwrap_or_default();
        }
        true
    }

    /// Drops, of the entries of one table from `from` on, those whose name comes again. RabbitMQ would look at the first
    /// one of a name, most clients at the last.
    fn drop_replaced(&mut self, from: usize) {
        let Self { bytes, places } = self;
        places.clear();
        let mut start = from;
        while let Some((name_len, end)) = entry_at(bytes, start) {
            places.push(Place { start, end, name_len });
            start = end;
        }
        if places.len() < 2 {
            return;
        }
        places.sort_unstable_by(|a, b| {
            let names = a.name(bytes).cmp(b.name(bytes));
            names.then_with(|| a.start.cmp(&b.start))
        });
        let is_replaced = |pair: &[Place]| matches!(pair, [one, next] if one.name(bytes) == next.name(bytes));
        if !places.windows(2).any(is_replaced) {
            return;
        }
        // Keeps the last of each name, and brings those together in their order.
        places.dedup_by(|next, kept| {
            let is_same = next.name(bytes) == kept.name(bytes);
            if is_same {
                *kept = *next;
            }
            is_same
        });
        places.sort_unstable_by_key(|place| place.start);
        let mut to = from;
        for place in places.iter() {
            bytes.copy_within(place.start..place.end, to);
            to += place.end - place.start;
        }
        bytes.truncate(to);
    }
}

impl Place {
    fn name<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let name = self.start + 1..self.start + 1 + self.name_len;
        bytes.get(name).unwrap_or_default()
    }
}

fn append(out: &mut Vec<u8>, text: impl Display) {
    let written = write!(out, "{text}");
    debug_assert!(written.is_ok(), "a Vec takes whatever is written");
}

/// The length of an entry's name, and where the entry ends.
fn entry_at(bytes: &[u8], start: usize) -> Option<(usize, usize)> {
    let name_len = usize::from(*bytes.get(start)?);
    let kind = start + 1 + name_len;
    let value = bytes.get(kind..)?;
    Some((name_len, kind + value_len(value)?))
}

/// The bytes of a value with its type octet, of the types that are written here.
fn value_len(value: &[u8]) -> Option<usize> {
    Some(match value.first()? {
        b'V' => 1,
        b't' => 2,
        b'l' | b'd' => 9,
        _ => {
            let length = value.get(1..5)?.first_chunk::<4>()?;
            5 + usize::try_from(u32::from_be_bytes(*length)).ok()?
        }
    })
}

/// A value's type, and what is behind type and length.
fn split_value(value: &[u8]) -> Option<(u8, &[u8])> {
    let kind = *value.first()?;
    matches!(kind, b'S' | b'A' | b'F')
        .then(|| value.get(5..value_len(value)?))
        .flatten()
        .map(|content| (kind, content))
}

const fn deeper(depth: u8) -> Result<u8, HeadersFault> {
    if depth < MAX_DEPTH {
        Ok(depth + 1)
    } else {
        Err(HeadersFault::TooDeep { limit: MAX_DEPTH })
    }
}
