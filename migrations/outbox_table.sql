-- An outbox table, for a database that has none; one that exists is used as it is. `walrelay setup` puts the
-- configured name in place of the first line's. Columns may be added and stand in any order.
-- The fill factor leaves room on each page for the update that sets sent_at.

create table public.outbox_events (
    id uuid primary key,
    aggregate_type text not null,
    aggregate_id bigint not null,
    event_type text not null,
    payload jsonb not null,
    sent_at timestamptz,
    created_at timestamptz not null default now(),
    headers jsonb
) with (fillfactor = 80);
