-- The schema of walrelay's own objects, and which of these files have been applied.

create schema if not exists walrelay;

create table walrelay.schema_migrations (
    version integer primary key,
    name text not null,
    applied_at timestamptz not null default now()
);
