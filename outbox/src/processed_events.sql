-- What a consumer has done: one row for each event, written in the transaction that did it. It belongs into the database
-- whose rows the consumer changes. The index is for deleting old rows.

create table if not exists processed_events (
    event_id uuid primary key,
    processed_at timestamptz not null default now()
);

create index if not exists processed_events_processed_at on processed_events (processed_at);
