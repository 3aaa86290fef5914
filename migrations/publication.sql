-- The publication. It must exist before the slot is created: a slot cannot decode what was written before its
-- publication existed. `walrelay setup` puts the configured names in place, and adds
-- publish_via_partition_root where a table is partitioned.

create publication walrelay for table public.outbox_events with (publish = 'insert');
