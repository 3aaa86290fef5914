-- The coupons' tables, in a schema that stands for a database of its own.

create table if not exists balances (
    user_id bigint primary key,
    coupons bigint not null
);
