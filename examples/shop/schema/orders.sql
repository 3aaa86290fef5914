-- The order service's tables. Each unique constraint decides a question that a time-out raises.

create table if not exists orders (
    id bigint generated always as identity primary key,
    user_id bigint not null,
    -- Chosen by the client for one intent to buy, and sent again with each retry of it.
    idempotency_key text not null,
    -- Of the request's body, so that the same key with another body is an error and not an order.
    fingerprint text not null,
    sku_ids bigint[] not null,
    status text not null default 'created'
        check (status in ('created', 'paying', 'paid', 'failed', 'refunding', 'refunded')),
    -- Counts the steps: an event carries it, so that a consumer knows which of two is newer.
    version integer not null default 1,
    created_at timestamptz not null default now(),
    -- Was this order placed already?
    constraint orders_are_placed_once unique (user_id, idempotency_key)
);

create table if not exists order_actions (
    order_id bigint not null references orders,
    action text not null check (action in ('pay', 'refund')),
    idempotency_key text not null,
    fingerprint text not null,
    requested_at timestamptz not null default now(),
    -- Was this order's payment (or refund) asked for already, and by whom?
    constraint orders_are_paid_and_refunded_once primary key (order_id, action)
);
