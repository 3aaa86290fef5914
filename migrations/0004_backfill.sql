-- Rows that the stream of a slot does not bring: those older than the slot, and those that a lost slot missed.

-- How the set-up of each slot went. Without a consistent point it was interrupted: the slot may be there, but what was
-- to be copied for it is not.
create table walrelay.slots (
    slot text primary key,
    consistent_point pg_lsn,
    set_up_at timestamptz not null default now()
);

-- One row for each copying of a table's ids. `commit_lsn` is in the headers of the rows' messages, in place of a
-- transaction's: it lies one byte before the position from which the slot streamed then, where no commit record starts.
create table walrelay.backfills (
    id bigint generated always as identity primary key,
    slot text not null,
    outbox text not null,
    commit_lsn pg_lsn not null,
    copied_at timestamptz not null default now(),
    copied_rows bigint not null default 0
);

-- The rows that are still to be sent, in the order of their numbers. `place` tells rows of the same id apart; `was_sent`
-- is true where a row had its mark already when it was noted, so that the mark does not keep it from being sent.
create table walrelay.backfill (
    slot text not null,
    number bigint generated always as identity,
    backfill bigint not null,
    id text not null,
    place integer not null default 1,
    was_sent boolean not null default false,
    primary key (slot, number)
);

