-- Which slot marks or deletes the rows of which shard of a table ('1/4'; '' for all rows): relays that share a table by row filters
-- each mark their own.
alter table walrelay.mark_owners add column shard text not null default '';
alter table walrelay.mark_owners drop constraint mark_owners_pkey;
alter table walrelay.mark_owners add primary key (outbox, shard);
