-- What marks need: whose they are, and what a sweep may touch.

-- Which slot marks or deletes the rows of a table. Only one may: another slot's unsent rows would not be its own.
create table walrelay.mark_owners (
    outbox text primary key,
    slot text not null,
    since timestamptz not null default now()
);

-- settled_complete: nothing was left to be marked when the prefix was stored.
-- unswept_xid: rows written by transactions before it need no sweep; from set-up on, those that the slot did not bring.
-- unswept_since: when the slot was created.
alter table walrelay.state
    add column settled_complete boolean not null default true,
    add column unswept_xid xid8,
    add column unswept_since timestamptz;

-- A skip by key says which event it was too: a sweep leaves its row alone, and no recovery brings it back.
alter table walrelay.skips add column settled_event_id text;
