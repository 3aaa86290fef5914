-- What the writers of a chaos run need. The outbox table exists already.

-- What was committed, whatever becomes of the outbox rows: noted in the transaction that inserts them.
create table chaos_committed (id uuid not null, aggregate bigint not null, number bigint not null, payload text not null);

create function chaos_note() returns trigger language plpgsql as $$
begin
  insert into chaos_committed
  select id, aggregate_id, (payload->>'n')::bigint, payload::text from added;
  return null;
end $$;

create trigger chaos_note after insert on outbox_events
referencing new table as added for each statement execute function chaos_note();

-- What was ever set aside; its row goes when it is delivered.
create table chaos_dead_letters (id uuid not null);

create function chaos_note_dead_letter() returns trigger language plpgsql as $$
begin
  insert into chaos_dead_letters values (new.event_id::uuid);
  return null;
end $$;

create trigger chaos_note_dead_letter after insert on walrelay.dead_letters
for each row execute function chaos_note_dead_letter();

-- The next number of each aggregate. Its row is locked until the transaction's end, so numbers are in commit order.
create table chaos_aggregates (aggregate bigint primary key, next bigint not null);

-- Inserts `count` events of `span` aggregates from `first` on, in turn; their ids begin with `prefix`.
create function chaos_write(prefix text, first bigint, span bigint, count bigint, size int) returns void
language plpgsql as $$
begin
  perform from chaos_aggregates where aggregate >= first and aggregate < first + span order by aggregate for update;
  insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
  select (prefix || lpad(to_hex(i), 8, '0'))::uuid, 'order', aggregate, case when (next + i / span) % 5 = 0 then 'Changed' else 'Happened' end,
         jsonb_build_object('n', next + i / span, 'text', repeat(E'ä"\\ 中', size / 5 + 1))
  from generate_series(0, count - 1) i join chaos_aggregates on aggregate = first + i % span order by i;
  update chaos_aggregates set next = next + count / span + 1 where aggregate >= first and aggregate < first + span;
end $$;
