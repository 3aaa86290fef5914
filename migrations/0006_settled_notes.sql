-- A note of a row that is settled and whose mark has not been committed: it is not sent again, and marked by the note.

alter table walrelay.backfill add column is_settled boolean not null default false;
