-- The risk desk's tables, in a schema that stands for a database of its own.

create table if not exists users (
    user_id bigint primary key,
    orders bigint not null default 0,
    declined bigint not null default 0,
    refunded bigint not null default 0
);

-- Where each order stands, by the newest event that has come: not necessarily the last one to come.
create table if not exists orders (
    order_id bigint primary key,
    status text not null,
    version integer not null
);
