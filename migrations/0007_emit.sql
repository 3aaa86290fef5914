-- Events without a table: they are written to the log alone, as logical messages.

-- Emits an event to a relay with [source.messages], as part of the caller's transaction: it is published when that commits, and
-- never if it rolls back. Returns the event's id. The payload reaches the broker as it is given, byte for byte.
--
-- It runs with the caller's rights: usage on schema walrelay, and execute on pg_logical_emit_message, which every role has
-- unless it was taken away. What the relay would hold as invalid is refused here, where whoever wrote it can see it.
create function walrelay.emit(
    aggregate_type text,
    aggregate_id text,
    event_type text,
    payload json,
    headers json default null,
    event_id uuid default gen_random_uuid(),
    prefix text default 'outbox'
) returns uuid
language plpgsql
as $emit$
begin
    if aggregate_type is null or aggregate_id is null or payload is null or event_id is null or prefix is null
        or coalesce(event_type, '') = ''
    then
        raise exception 'an event needs a value for each of aggregate_type, aggregate_id, event_type, payload, event_id and prefix'
            using errcode = 'null_value_not_allowed';
    end if;
    -- As bytes: a text would be sent in the database's encoding, whatever the relay asks for.
    perform pg_catalog.pg_logical_emit_message(true, prefix, pg_catalog.convert_to(pg_catalog.json_build_object(
        'id', event_id, 'aggregate_type', aggregate_type, 'aggregate_id', aggregate_id, 'event_type', event_type,
        'created_at', pg_catalog.now(), 'headers', headers, 'payload', payload)::text, 'UTF8'));
    return event_id;
end
$emit$;

comment on function walrelay.emit(text, text, text, json, json, uuid, text) is
    'emits an event to walrelay as a logical message, and returns its id';
