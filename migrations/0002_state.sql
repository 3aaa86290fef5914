-- What walrelay keeps in the database about each slot: the baseline that the guard compares with, the events that
-- were set aside, and the requests to skip one.

-- One row for each slot. Only `walrelay setup` and `walrelay recover` write the baseline; the settled prefix is
-- the relay's, which needs no more than `update (settled_commit_lsn, settled_tx_seq)`.
create table walrelay.state (
    slot text primary key,
    system_id text not null,
    timeline integer not null,
    publication text not null,
    publication_oid oid not null,
    publication_xmin text not null,
    publication_options json not null,
    members json not null,
    tables json not null,
    baseline_at timestamptz not null default now(),
    baseline_by text not null check (baseline_by in ('setup', 'recover')),
    settled_commit_lsn pg_lsn,
    settled_tx_seq bigint,
    check ((settled_commit_lsn is null) = (settled_tx_seq is null))
);

-- Events that were set aside. `columns` holds each column's text as the stream brought it, or null; a column that
-- was too large to be read is left out.
create table walrelay.dead_letters (
    slot text not null,
    commit_lsn pg_lsn not null,
    tx_seq bigint not null check (tx_seq >= 0),
    outbox text not null,
    xid bigint not null,
    commit_time timestamptz not null,
    event_id text,
    reason text not null check (reason in ('unroutable', 'nacked', 'unanswered', 'refused', 'invalid')),
    detail text not null,
    exchange text,
    routing_key text,
    columns json not null check (json_typeof(columns) = 'object'),
    first_failed_at timestamptz not null default now(),
    last_failed_at timestamptz not null default now(),
    attempts integer not null default 1 check (attempts > 0),
    state text not null default 'pending' check (state in ('pending', 'retrying', 'discarded')),
    discard_reason text,
    discarded_at timestamptz,
    discarded_by text,
    primary key (slot, commit_lsn, tx_seq),
    check ((state = 'discarded') = (discarded_at is not null)),
    check ((discarded_at is null) = (discarded_by is null)),
    check ((discarded_at is null) = (discard_reason is null))
);

-- Requests to settle one held event without delivering it, and what became of them.
create table walrelay.skips (
    id bigint generated always as identity primary key,
    slot text not null,
    event_id text,
    commit_lsn pg_lsn,
    tx_seq bigint check (tx_seq >= 0),
    reason text not null check (reason <> ''),
    requested_at timestamptz not null default now(),
    requested_by text not null default session_user,
    settled_at timestamptz,
    settled_commit_lsn pg_lsn,
    settled_tx_seq bigint,
    settled_xid bigint,
    check ((event_id is null) <> (commit_lsn is null)),
    check ((commit_lsn is null) = (tx_seq is null)),
    check ((settled_at is null) = (settled_commit_lsn is null)),
    check ((settled_at is null) = (settled_tx_seq is null)),
    check ((settled_at is null) = (settled_xid is null))
);

-- At most one open request for each event.
create unique index skips_open_by_event_id on walrelay.skips (slot, event_id) where settled_at is null;
create unique index skips_open_by_key on walrelay.skips (slot, commit_lsn, tx_seq) where settled_at is null;
