-- The inventory's tables, in a schema that stands for a database of its own.

create table if not exists stock (
    sku_id bigint primary key,
    on_hand bigint not null
);

insert into stock select sku_id, 1000000 from generate_series(1, 100) sku_id on conflict (sku_id) do nothing;
