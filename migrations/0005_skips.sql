-- The table of the event that a request has settled: ids repeat across tables, and recovery must not take another table's row
-- for the one that was skipped.
alter table walrelay.skips add column settled_outbox text;
