\echo Use "CREATE EXTENSION idgen" to load this file. \quit

-- The objects of version 0.14.0. All updates start here.

-- Without IF NOT EXISTS: another role may own an existing schema of this name.
CREATE SCHEMA idgen;

-- Segments, one row for each tag. The constraints refuse rows that no values can come from, also in a restore. The trigger sets
-- creation, version and the two transaction ids, and refuses a lower max_id.
CREATE TABLE idgen.segment (
    tag text PRIMARY KEY
        CHECK (pg_catalog.octet_length(tag) OPERATOR(pg_catalog.>=) 1
               AND pg_catalog.octet_length(tag) OPERATOR(pg_catalog.<=) 255),
    max_id bigint NOT NULL DEFAULT 0 CHECK (max_id OPERATOR(pg_catalog.>=) (-1)),
    step bigint NOT NULL DEFAULT 1000,
    min_step bigint NOT NULL DEFAULT 1000 CHECK (min_step OPERATOR(pg_catalog.>=) 1),
    max_step bigint NOT NULL DEFAULT 10000000 CHECK (max_step OPERATOR(pg_catalog.<=) 1000000000),
    target_duration interval NOT NULL DEFAULT '1 second' CHECK (target_duration OPERATOR(pg_catalog.>) '0 seconds'),
    stride bigint NOT NULL DEFAULT 1 CHECK (stride OPERATOR(pg_catalog.>=) 1 AND stride OPERATOR(pg_catalog.<=) 2147483647),
    residue bigint NOT NULL DEFAULT 0 CHECK (residue OPERATOR(pg_catalog.>=) 0),
    upper_bound bigint NOT NULL DEFAULT 9223372036854775807,
    owner regrole NOT NULL,
    -- 0, shown as "-", is PUBLIC.
    drawers regrole[] NOT NULL DEFAULT '{}',
    creation bigint NOT NULL UNIQUE,
    version bigint NOT NULL,
    created_in bigint NOT NULL,
    changed_in bigint NOT NULL,
    server bigint,
    reserve interval CHECK (reserve OPERATOR(pg_catalog.>=) '2 seconds' AND reserve OPERATOR(pg_catalog.<=) '365 days'),
    source text,
    history text,
    received bigint,
    CHECK (step OPERATOR(pg_catalog.>=) min_step AND step OPERATOR(pg_catalog.<=) max_step),
    CHECK (residue OPERATOR(pg_catalog.<) stride),
    CHECK (max_id OPERATOR(pg_catalog.<=) upper_bound),
    CHECK (server IS NOT NULL OR reserve IS NULL)
) WITH (fillfactor = 50); -- room for updated rows, so that a refill touches no index
-- A dump names roles. The row of a dropped role has its OID, which can be another role's where the dump is restored. So the dump
-- gives its segments to the owner of the database, and omits its grants. Nor does it name the transactions: a restore that
-- disables the trigger keeps their numbers, which belong to other transactions where it runs. And a restored database must not
-- pass for the one that granted: it has no history. The columns are those of the table, in order.
SELECT pg_catalog.pg_extension_config_dump('idgen.segment', $condition$WHERE false UNION ALL
    SELECT tag, max_id, step, min_step, max_step, target_duration, stride, residue, upper_bound,
           CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles AS role WHERE role.oid OPERATOR(pg_catalog.=) owner::pg_catalog.oid)
                THEN owner ELSE 'pg_database_owner'::pg_catalog.regrole END,
           ARRAY(SELECT granted.role FROM pg_catalog.unnest(drawers) WITH ORDINALITY AS granted (role, place)
                 WHERE granted.role::pg_catalog.oid OPERATOR(pg_catalog.=) 0::pg_catalog.oid
                    OR EXISTS (SELECT FROM pg_catalog.pg_roles AS role
                               WHERE role.oid OPERATOR(pg_catalog.=) granted.role::pg_catalog.oid)
                 ORDER BY granted.place),
           creation, version, 0, 0, server, reserve, source, CASE WHEN history IS NOT NULL THEN '' END, received
    FROM idgen.segment$condition$);

-- At a coordinator: the servers that are attached to a tag. They outlive it: a tag that is created again must not repeat their
-- values. A restored database has no history, as above.
CREATE TABLE idgen.segment_server (
    tag text NOT NULL,
    server bigint NOT NULL,
    name text NOT NULL,
    max_id bigint NOT NULL,
    history text NOT NULL,
    reported_at timestamptz NOT NULL,
    first_id bigint,
    last_id bigint,
    PRIMARY KEY (tag, server)
) WITH (fillfactor = 50); -- as for idgen.segment
SELECT pg_catalog.pg_extension_config_dump('idgen.segment_server', $condition$WHERE false UNION ALL
    SELECT tag, server, name, max_id, '', reported_at, NULL, NULL FROM idgen.segment_server$condition$);

-- Definitions of leases.
CREATE TABLE idgen.lease_definition (
    name text PRIMARY KEY
        CHECK (pg_catalog.octet_length(name) OPERATOR(pg_catalog.>=) 1
               AND pg_catalog.octet_length(name) OPERATOR(pg_catalog.<=) 255),
    slots int NOT NULL CHECK (slots OPERATOR(pg_catalog.>=) 1 AND slots OPERATOR(pg_catalog.<=) 65536),
    ttl interval NOT NULL CHECK (ttl OPERATOR(pg_catalog.>) '0 seconds'),
    lock_delay interval NOT NULL CHECK (lock_delay OPERATOR(pg_catalog.>=) '0 seconds'),
    owner regrole NOT NULL,
    first_slot int NOT NULL DEFAULT 0 CHECK (first_slot OPERATOR(pg_catalog.>=) 0),
    notify boolean NOT NULL DEFAULT false,
    CHECK (first_slot OPERATOR(pg_catalog.<=) (65536 OPERATOR(pg_catalog.-) slots))
);
SELECT pg_catalog.pg_extension_config_dump('idgen.lease_definition', $condition$WHERE false UNION ALL
    SELECT name, slots, ttl, lock_delay,
           CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles AS role WHERE role.oid OPERATOR(pg_catalog.=) owner::pg_catalog.oid)
                THEN owner ELSE 'pg_database_owner'::pg_catalog.regrole END, first_slot, notify
    FROM idgen.lease_definition$condition$);

-- Fencing tokens. A dump contains neither the sequence nor the terms: the server that restores it has no holders.
CREATE SEQUENCE idgen.lease_token;
-- Past the tokens of an extension that was dropped: a session that raised its sequence does not raise this one.
SELECT pg_catalog.setval('idgen.lease_token', (pg_catalog.extract('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint);

-- Slots and their current or last terms. Times are microseconds of the clock in the column clock.
CREATE TABLE idgen.lease (
    name text NOT NULL,
    slot int NOT NULL,
    token bigint NOT NULL,
    depth int NOT NULL,
    owner text,
    role regrole NOT NULL,
    data jsonb,
    acquired_at timestamptz NOT NULL,
    ttl_us bigint NOT NULL,
    ends_us bigint NOT NULL,
    clock text NOT NULL,
    revoked boolean NOT NULL,
    session bigint,
    session_key bigint,
    PRIMARY KEY (name, slot),
    -- A new token changes a key, so it waits for fences, which hold FOR KEY SHARE. A renewal does not. The token is first:
    -- where most leases have one slot, the planner takes any index that begins with the name, even to find one slot of many.
    UNIQUE (token, name)
) WITH (fillfactor = 50); -- free space on each page, so that renewals are HOT updates

-- The id times of the last holder of each worker id (column number). The rows outlive leases, pools and a dump: the next
-- holder begins after them.
CREATE TABLE idgen.worker_number (
    pool text NOT NULL,
    number int NOT NULL,
    not_before timestamptz NOT NULL,
    not_after timestamptz NOT NULL,
    token bigint NOT NULL,
    owner text,
    released boolean NOT NULL DEFAULT false,
    PRIMARY KEY (pool, number)
) WITH (fillfactor = 50);
-- To find free worker ids without reading a pool. They are here because an index on the end of a term in idgen.lease would
-- cost every lease an entry for each renewal and each release. An owner can be longer than an index allows.
CREATE INDEX worker_number_released ON idgen.worker_number (pool, not_after) WHERE released;
CREATE INDEX worker_number_unreleased ON idgen.worker_number (pool, not_after) WHERE NOT released;
CREATE INDEX worker_number_owner ON idgen.worker_number (pool, pg_catalog.hashtext(owner), token) WHERE owner IS NOT NULL;
SELECT pg_catalog.pg_extension_config_dump('idgen.worker_number', '');

-- The server, timeline, database and data directory that grant worker ids from this database, to detect that another one
-- continues with its data. At most one row.
CREATE TABLE idgen.worker_history (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    system_identifier bigint NOT NULL,
    timeline int NOT NULL,
    database oid NOT NULL,
    place text NOT NULL,
    since timestamptz NOT NULL,
    first_token bigint NOT NULL,
    longest interval NOT NULL
);
-- A restored database must not pass for the one that granted.
SELECT pg_catalog.pg_extension_config_dump('idgen.worker_history', $condition$WHERE false UNION ALL
    SELECT one, 0, 0, 0::oid, place, since, first_token, longest FROM idgen.worker_history$condition$);

-- Keys of public ids, one row for each key of a prefix. A retired key has no secret. Its row stays, because its texts may
-- still be in use: a prefix has at most one key of the short form, ever.
CREATE TABLE idgen.public_key (
    prefix text NOT NULL
        CHECK ((prefix COLLATE pg_catalog."C") OPERATOR(pg_catalog.~) '^[a-z]([a-z0-9_]{0,61}[a-z0-9])?$'),
    version int NOT NULL CHECK (version OPERATOR(pg_catalog.>=) 1 AND version OPERATOR(pg_catalog.<=) 1000000000),
    form text NOT NULL CHECK (form OPERATOR(pg_catalog.=) ANY (ARRAY['short', 'long'])),
    secret bytea CHECK (pg_catalog.octet_length(secret) OPERATOR(pg_catalog.=) 32),
    owner regrole NOT NULL,
    -- 0, shown as "-", is PUBLIC.
    users regrole[] NOT NULL DEFAULT '{}'
        CHECK (pg_catalog.array_position(users, NULL) IS NULL
               AND coalesce(pg_catalog.array_ndims(users), 1) OPERATOR(pg_catalog.=) 1),
    created timestamptz NOT NULL DEFAULT pg_catalog.now(),
    retired timestamptz,
    PRIMARY KEY (prefix, version),
    CHECK ((secret IS NULL) OPERATOR(pg_catalog.=) (retired IS NOT NULL))
);
-- ANALYZE would keep secrets that are retired or dropped.
ALTER TABLE idgen.public_key ALTER COLUMN secret SET STATISTICS 0;
CREATE UNIQUE INDEX public_key_one_short ON idgen.public_key (prefix) WHERE form OPERATOR(pg_catalog.=) 'short';
-- As for segments, a dump gives the keys of a dropped role to the owner of the database, and omits its grants.
SELECT pg_catalog.pg_extension_config_dump('idgen.public_key', $condition$WHERE false UNION ALL
    SELECT prefix, version, form, secret,
           CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles AS role WHERE role.oid OPERATOR(pg_catalog.=) owner::pg_catalog.oid)
                THEN owner ELSE 'pg_database_owner'::pg_catalog.regrole END,
           ARRAY(SELECT granted.role FROM pg_catalog.unnest(users) WITH ORDINALITY AS granted (role, place)
                 WHERE granted.role::pg_catalog.oid OPERATOR(pg_catalog.=) 0::pg_catalog.oid
                    OR EXISTS (SELECT FROM pg_catalog.pg_roles AS role
                               WHERE role.oid OPERATOR(pg_catalog.=) granted.role::pg_catalog.oid)
                 ORDER BY granted.place),
           created, retired
    FROM idgen.public_key$condition$);

CREATE  FUNCTION "id_mask"(
	"prefix" text, /* Text */
	"id" bigint /* i64 */
) RETURNS bigint /* i64 */
STRICT STABLE PARALLEL SAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'id_mask_wrapper';

CREATE  FUNCTION "id_unmask"(
	"prefix" text, /* Text */
	"masked" bigint /* i64 */
) RETURNS bigint /* i64 */
STRICT STABLE PARALLEL SAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'id_unmask_wrapper';

CREATE FUNCTION lease_acquire(name text, ttl interval DEFAULT NULL, owner text DEFAULT NULL, data jsonb DEFAULT NULL, token bigint DEFAULT NULL, bind_session boolean DEFAULT false, shared boolean DEFAULT false, OUT name text, OUT slot int, OUT token bigint, OUT owner text, OUT acquired_at timestamptz, OUT expires_at timestamptz, OUT depth int) VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_acquire_wrapper';

CREATE FUNCTION lease_define(name text, slots int DEFAULT 1, ttl interval DEFAULT '30 seconds', lock_delay interval DEFAULT '0', first_slot int DEFAULT 0, notify boolean DEFAULT false) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_define_watched_wrapper';

CREATE FUNCTION idgen.lease_definition_changed() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', 'lease_definition_changed_wrapper';

CREATE FUNCTION lease_drop(name text) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_drop_wrapper';

CREATE FUNCTION lease_fence(name text, token bigint) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_fence_wrapper';

CREATE FUNCTION idgen.lease_get_state(name text, depth int, ends_us bigint, ttl_us bigint, revoked boolean, clock text, session bigint, session_key bigint, lock_delay interval, OUT state text, OUT expires_at timestamptz, OUT bound boolean, OUT key bigint) VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_get_state_wrapper';

CREATE FUNCTION lease_guard() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', 'lease_guard_wrapper';

CREATE FUNCTION idgen.lease_lock_row(version tid, is_take_over boolean) RETURNS boolean STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_lock_row_wrapper';

CREATE FUNCTION lease_release(name text, token bigint) RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_release_wrapper';

CREATE FUNCTION lease_renew(name text, token bigint, ttl interval DEFAULT NULL) RETURNS timestamptz VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_renew_wrapper';

CREATE FUNCTION lease_renew_many(names text[], tokens bigint[], ttl interval DEFAULT NULL, OUT name text, OUT token bigint, OUT expires_at timestamptz) RETURNS SETOF record VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_renew_many_wrapper';

CREATE FUNCTION lease_revoke(name text, slot int DEFAULT 0) RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_revoke_wrapper';

CREATE FUNCTION lease_try_acquire(name text, timeout interval DEFAULT '0', ttl interval DEFAULT NULL, owner text DEFAULT NULL, data jsonb DEFAULT NULL, token bigint DEFAULT NULL, bind_session boolean DEFAULT false, shared boolean DEFAULT false, OUT name text, OUT slot int, OUT token bigint, OUT owner text, OUT acquired_at timestamptz, OUT expires_at timestamptz, OUT depth int) RETURNS SETOF record ROWS 1 VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_try_acquire_wrapper';

CREATE FUNCTION lock_acquire(name text, shared boolean DEFAULT false) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_acquire_wrapper';

CREATE FUNCTION lock_acquire_many(names text[], shared boolean DEFAULT false) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_acquire_many_wrapper';

CREATE FUNCTION lock_acquire_many_xact(names text[], shared boolean DEFAULT false) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_acquire_many_xact_wrapper';

CREATE FUNCTION lock_acquire_xact(name text, shared boolean DEFAULT false) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_acquire_xact_wrapper';

CREATE FUNCTION idgen.lock_get_holds(OUT pid int, OUT key bigint, OUT shared boolean, OUT session_depth int, OUT transaction_depth int, OUT acquired_at timestamptz, OUT waits_for text) RETURNS SETOF record VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'lock_get_holds_wrapper';

CREATE FUNCTION idgen.lock_get_names(OUT key bigint, OUT name text) RETURNS SETOF record VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'lock_get_names_wrapper';

CREATE  FUNCTION "lock_key"(
	"name" text /* Text */
) RETURNS bigint /* i64 */
IMMUTABLE STRICT PARALLEL SAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'lock_key_wrapper';

CREATE FUNCTION lock_release(name text, shared boolean DEFAULT NULL) RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_release_wrapper';

CREATE FUNCTION lock_release_many(names text[], shared boolean DEFAULT NULL) RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_release_many_wrapper';

CREATE FUNCTION lock_try_acquire(name text, timeout interval DEFAULT '0', shared boolean DEFAULT false) RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_try_acquire_wrapper';

CREATE FUNCTION lock_try_acquire_many(names text[], timeout interval DEFAULT '0', shared boolean DEFAULT false) RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_try_acquire_many_wrapper';

CREATE FUNCTION lock_try_acquire_many_xact(names text[], timeout interval DEFAULT '0', shared boolean DEFAULT false) RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_try_acquire_many_xact_wrapper';

CREATE FUNCTION lock_try_acquire_xact(name text, timeout interval DEFAULT '0', shared boolean DEFAULT false) RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_try_acquire_xact_wrapper';

CREATE  FUNCTION "public_id"(
	"prefix" text, /* Text */
	"id" bigint /* i64 */
) RETURNS TEXT /* String */
STRICT STABLE PARALLEL SAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'public_id_wrapper';

CREATE FUNCTION public_id_alter(prefix text, owner text) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_alter_wrapper';

CREATE  FUNCTION "public_id_decode"(
	"prefix" text, /* Text */
	"text" text /* Text */
) RETURNS bigint /* i64 */
STRICT STABLE PARALLEL SAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'public_id_decode_wrapper';

CREATE FUNCTION public_id_define(prefix text, form text DEFAULT 'short') RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_define_wrapper';

CREATE FUNCTION public_id_drop(prefix text) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_drop_wrapper';

CREATE FUNCTION public_id_grant(prefix text, role text) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_grant_wrapper';

CREATE FUNCTION public_id_retire(prefix text, version int) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_retire_wrapper';

CREATE FUNCTION public_id_revoke(prefix text, role text) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_revoke_wrapper';

CREATE FUNCTION public_id_rotate(prefix text, form text DEFAULT NULL) RETURNS int VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_rotate_wrapper';

CREATE  FUNCTION "public_id_try_decode"(
	"prefix" text, /* Text */
	"text" text /* AsciiText */
) RETURNS bigint /* Option < i64 > */
STRICT STABLE PARALLEL SAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'public_id_try_decode_wrapper';

CREATE FUNCTION idgen.public_key_row() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', 'public_key_row_wrapper';

CREATE FUNCTION idgen.public_key_secret() RETURNS bytea VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'public_key_secret_wrapper';

CREATE FUNCTION idgen.reset_stats() RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'reset_stats_wrapper';

CREATE FUNCTION row_version() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', 'row_version_wrapper';

CREATE FUNCTION segment_alter(tag text, max_id bigint DEFAULT NULL, step bigint DEFAULT NULL, min_step bigint DEFAULT NULL, max_step bigint DEFAULT NULL, target_duration interval DEFAULT NULL, stride bigint DEFAULT NULL, residue bigint DEFAULT NULL, upper_bound bigint DEFAULT NULL, owner text DEFAULT NULL) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'segment_alter_wrapper';

CREATE FUNCTION segment_attach(tag text, reserve interval DEFAULT '10 minutes') RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'segment_attach_wrapper';

CREATE FUNCTION segment_confirm() RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'segment_confirm_wrapper';

CREATE FUNCTION segment_create(tag text, start bigint DEFAULT 1, step bigint DEFAULT 1000, min_step bigint DEFAULT NULL, max_step bigint DEFAULT NULL, target_duration interval DEFAULT '1 second', stride bigint DEFAULT 1, residue bigint DEFAULT 0, upper_bound bigint DEFAULT 9223372036854775807) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'segment_create_wrapper';

CREATE FUNCTION segment_detach(tag text) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'segment_detach_wrapper';

CREATE FUNCTION segment_drop(tag text) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'segment_drop_wrapper';

CREATE FUNCTION segment_grant(tag text, role text) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'segment_grant_wrapper';

CREATE FUNCTION segment_leave(tag text, server bigint, received bigint) RETURNS void VOLATILE PARALLEL UNSAFE SET lock_timeout = '1s' LANGUAGE c AS 'MODULE_PATHNAME', 'segment_leave_wrapper';

CREATE FUNCTION segment_next(tag text) RETURNS bigint VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'segment_next_wrapper';

CREATE FUNCTION segment_next_many(tag text, count int) RETURNS SETOF bigint VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'segment_next_many_wrapper';

CREATE FUNCTION segment_request(tag text, server bigint, name text, received bigint, count bigint, OUT first_id bigint, OUT count bigint, OUT stride bigint, OUT residue bigint, OUT source text, OUT waits_for text) VOLATILE PARALLEL UNSAFE SET lock_timeout = '1s' LANGUAGE c AS 'MODULE_PATHNAME', 'segment_request_wrapper';

CREATE FUNCTION segment_reserve(tag text, count bigint, OUT first_id bigint, OUT last_id bigint, OUT stride bigint) VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'segment_reserve_wrapper';

CREATE FUNCTION segment_resume(tag text, max_id bigint) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'segment_resume_wrapper';

CREATE FUNCTION segment_return(tag text, server bigint, first_id bigint, last_id bigint) RETURNS boolean VOLATILE PARALLEL UNSAFE SET lock_timeout = '1s' LANGUAGE c AS 'MODULE_PATHNAME', 'segment_return_wrapper';

CREATE FUNCTION segment_revoke(tag text, role text) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'segment_revoke_wrapper';

CREATE FUNCTION idgen.segment_row() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', 'segment_row_wrapper';

CREATE  FUNCTION "snowflake_ceil"(
	"ts" timestamp with time zone /* TimestampWithTimeZone */
) RETURNS bigint /* i64 */
STRICT STABLE PARALLEL SAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'snowflake_ceil_wrapper';

CREATE  FUNCTION "snowflake_ceil"(
	"ts" timestamp with time zone, /* TimestampWithTimeZone */
	"layout" text /* Text */
) RETURNS bigint /* i64 */
IMMUTABLE STRICT PARALLEL SAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'snowflake_ceil_in_wrapper';

CREATE  FUNCTION "snowflake_decode"(
	"text" text, /* Text */
	"format" text /* Text */
) RETURNS bigint /* i64 */
IMMUTABLE STRICT PARALLEL SAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'snowflake_decode_wrapper';

CREATE  FUNCTION "snowflake_encode"(
	"id" bigint, /* i64 */
	"format" text /* Text */
) RETURNS TEXT /* String */
IMMUTABLE STRICT PARALLEL SAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'snowflake_encode_wrapper';

CREATE  FUNCTION "snowflake_floor"(
	"ts" timestamp with time zone /* TimestampWithTimeZone */
) RETURNS bigint /* i64 */
STRICT STABLE PARALLEL SAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'snowflake_floor_wrapper';

CREATE  FUNCTION "snowflake_floor"(
	"ts" timestamp with time zone, /* TimestampWithTimeZone */
	"layout" text /* Text */
) RETURNS bigint /* i64 */
IMMUTABLE STRICT PARALLEL SAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'snowflake_floor_in_wrapper';

CREATE FUNCTION snowflake_layout(OUT spec text, OUT bits int, OUT unit interval, OUT epoch timestamptz, OUT workers bigint, OUT ids_per_second bigint, OUT ends_at timestamptz) STABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_layout_wrapper';

CREATE FUNCTION snowflake_layout(layout text, OUT spec text, OUT bits int, OUT unit interval, OUT epoch timestamptz, OUT workers bigint, OUT ids_per_second bigint, OUT ends_at timestamptz) IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_layout_in_wrapper';

CREATE  FUNCTION "snowflake_make"(
	"ts" timestamp with time zone, /* TimestampWithTimeZone */
	"worker" INT, /* i32 */
	"sequence" bigint, /* i64 */
	"datacenter" INT DEFAULT 0 /* i32 */
) RETURNS bigint /* i64 */
STRICT STABLE PARALLEL SAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'snowflake_make_wrapper';

CREATE  FUNCTION "snowflake_make"(
	"ts" timestamp with time zone, /* TimestampWithTimeZone */
	"worker" INT, /* i32 */
	"sequence" bigint, /* i64 */
	"layout" text /* Text */
) RETURNS bigint /* i64 */
IMMUTABLE STRICT PARALLEL SAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'snowflake_make_in_wrapper';

CREATE  FUNCTION "snowflake_make"(
	"ts" timestamp with time zone, /* TimestampWithTimeZone */
	"worker" INT, /* i32 */
	"sequence" bigint, /* i64 */
	"datacenter" INT, /* i32 */
	"layout" text /* Text */
) RETURNS bigint /* i64 */
IMMUTABLE STRICT PARALLEL SAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'snowflake_make_with_datacenter_in_wrapper';

CREATE FUNCTION snowflake_next() RETURNS bigint VOLATILE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_next_wrapper';

CREATE FUNCTION snowflake_next(layout text) RETURNS bigint VOLATILE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_next_in_wrapper';

CREATE FUNCTION snowflake_next_many(count int) RETURNS SETOF bigint VOLATILE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_next_many_wrapper';

CREATE FUNCTION snowflake_next_many(count int, layout text) RETURNS SETOF bigint VOLATILE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_next_many_in_wrapper';

CREATE FUNCTION snowflake_observe(id bigint, force boolean DEFAULT false) RETURNS timestamptz VOLATILE PARALLEL UNSAFE STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_observe_wrapper';

CREATE FUNCTION snowflake_observe(id bigint, layout text, force boolean DEFAULT false) RETURNS timestamptz VOLATILE PARALLEL UNSAFE STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_observe_in_wrapper';

CREATE FUNCTION snowflake_parts(id bigint, OUT ts timestamptz, OUT datacenter int, OUT worker int, OUT tag int, OUT sequence bigint) STABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_parts_wrapper';

CREATE FUNCTION snowflake_parts(id bigint, layout text, OUT ts timestamptz, OUT datacenter int, OUT worker int, OUT tag int, OUT sequence bigint) IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_parts_in_wrapper';

CREATE FUNCTION snowflake_settled() RETURNS bigint VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_settled_wrapper';

CREATE FUNCTION snowflake_settled(layout text) RETURNS bigint VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_settled_in_wrapper';

CREATE  FUNCTION "snowflake_time"(
	"id" bigint /* i64 */
) RETURNS timestamp with time zone /* TimestampWithTimeZone */
STRICT STABLE PARALLEL SAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'snowflake_time_wrapper';

CREATE  FUNCTION "snowflake_time"(
	"id" bigint, /* i64 */
	"layout" text /* Text */
) RETURNS timestamp with time zone /* TimestampWithTimeZone */
IMMUTABLE STRICT PARALLEL SAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'snowflake_time_in_wrapper';

CREATE FUNCTION idgen.stat_get_clock(OUT mark timestamptz, OUT lead interval, OUT backward_steps bigint, OUT largest_step interval, OUT mark_writes bigint, OUT mark_write_time interval) RETURNS SETOF record VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_clock_wrapper';

CREATE FUNCTION idgen.stat_get_lease(OUT grants bigint, OUT take_overs bigint, OUT renewals bigint, OUT releases bigint, OUT fences bigint, OUT refused bigint, OUT probes bigint, OUT wait_time interval) RETURNS SETOF record VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_lease_wrapper';

CREATE FUNCTION idgen.stat_get_reset_time() RETURNS timestamptz VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_reset_time_wrapper';

CREATE FUNCTION idgen.stat_get_segment(OUT creation bigint, OUT first_id bigint, OUT last_id bigint, OUT next_first_id bigint, OUT next_last_id bigint, OUT remaining bigint, OUT issued bigint, OUT refills bigint, OUT refill_us bigint, OUT waits bigint, OUT wait_us bigint, OUT last_error text) RETURNS SETOF record VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_segment_wrapper';

CREATE FUNCTION idgen.stat_get_segment_supply(OUT creation bigint, OUT coordinator text, OUT rate float8) RETURNS SETOF record VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_segment_supply_wrapper';

CREATE FUNCTION idgen.stat_get_snowflake(OUT layout text, OUT datacenter int, OUT worker int, OUT last_id bigint, OUT last_time timestamptz, OUT issued bigint, OUT batches bigint, OUT borrowed bigint, OUT waits bigint, OUT wait_us bigint, OUT ends_at timestamptz) RETURNS SETOF record VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_snowflake_wrapper';

CREATE FUNCTION idgen.stat_get_worker(OUT source text, OUT state text, OUT worker_id int, OUT datacenter_id int, OUT pool text, OUT not_before timestamptz, OUT not_after timestamptz, OUT coordinator text, OUT pid int, OUT renewals bigint, OUT failures bigint, OUT failing_since timestamptz, OUT last_error text, OUT changes bigint) RETURNS SETOF record VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_worker_wrapper';

CREATE FUNCTION idgen.status() RETURNS jsonb VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'status_wrapper';

CREATE  FUNCTION "uuidv7_ceil"(
	"ts" timestamp with time zone /* TimestampWithTimeZone */
) RETURNS uuid /* Uuid */
IMMUTABLE STRICT PARALLEL SAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'uuidv7_ceil_wrapper';

CREATE  FUNCTION "uuidv7_floor"(
	"ts" timestamp with time zone /* TimestampWithTimeZone */
) RETURNS uuid /* Uuid */
IMMUTABLE STRICT PARALLEL SAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'uuidv7_floor_wrapper';

CREATE FUNCTION uuidv7_next() RETURNS uuid VOLATILE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'uuidv7_next_wrapper';

CREATE FUNCTION uuidv7_next_many(count int) RETURNS SETOF uuid VOLATILE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'uuidv7_next_many_wrapper';

CREATE FUNCTION uuidv7_next_many(count int, node boolean) RETURNS SETOF uuid VOLATILE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'uuidv7_next_many_of_node_wrapper';

CREATE FUNCTION uuidv7_next(node boolean) RETURNS uuid VOLATILE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'uuidv7_next_of_node_wrapper';

CREATE  FUNCTION "uuidv7_time"(
	"id" uuid /* Uuid */
) RETURNS timestamp with time zone /* TimestampWithTimeZone */
IMMUTABLE STRICT PARALLEL SAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'uuidv7_time_wrapper';

CREATE FUNCTION worker_acquire(pool text, owner text DEFAULT NULL, ttl interval DEFAULT NULL, reached timestamptz DEFAULT NULL, prefer int DEFAULT NULL, OUT worker_id int, OUT token bigint, OUT not_before timestamptz, OUT not_after timestamptz, OUT expires_at timestamptz) VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_acquire_wrapper';

CREATE FUNCTION worker_begin_history(since timestamptz DEFAULT NULL) RETURNS timestamptz VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_begin_history_wrapper';

CREATE FUNCTION worker_confirm(pool text, token bigint) RETURNS timestamptz VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_confirm_wrapper';

CREATE FUNCTION worker_correct(pool text, worker_id int, used_until timestamptz) RETURNS timestamptz VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_correct_wrapper';

CREATE FUNCTION worker_move(from_pool text, to_pool text) RETURNS int VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_move_wrapper';

CREATE FUNCTION worker_release(pool text, token bigint, last_time timestamptz DEFAULT NULL, last_not_after timestamptz DEFAULT NULL) RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_release_compared_wrapper';

CREATE FUNCTION worker_renew(pool text, token bigint, ttl interval, OUT not_after timestamptz, OUT expires_at timestamptz) VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_renew_wrapper';

CREATE FUNCTION worker_renew(pool text, token bigint, last_not_after timestamptz, reached timestamptz DEFAULT NULL, OUT not_after timestamptz, OUT expires_at timestamptz) VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_renew_compared_wrapper';

CREATE VIEW idgen.stat_clock AS
SELECT mark, lead, backward_steps, largest_step, mark_writes, mark_write_time,
       idgen.stat_get_reset_time() AS stats_reset
FROM idgen.stat_get_clock();

CREATE TRIGGER lease_definition_changed AFTER INSERT OR UPDATE OR DELETE ON idgen.lease_definition
FOR EACH ROW EXECUTE FUNCTION idgen.lease_definition_changed();
ALTER TABLE idgen.lease_definition ENABLE ALWAYS TRIGGER lease_definition_changed;

-- Slots that were ever granted. Only members of the holder's role see the token. 27761 is the kind of the locks of queues.
CREATE VIEW idgen.leases AS
SELECT lease.name, lease.slot, now.state,
       CASE WHEN lease.depth OPERATOR(pg_catalog.>) 0 AND pg_catalog.pg_has_role(lease.role::oid, 'USAGE') THEN lease.token END AS token,
       lease.depth,
       CASE WHEN lease.depth OPERATOR(pg_catalog.>) 0 THEN lease.owner END AS owner,
       CASE WHEN lease.depth OPERATOR(pg_catalog.>) 0 THEN lease.role END AS role,
       CASE WHEN lease.depth OPERATOR(pg_catalog.>) 0 THEN lease.data END AS data,
       CASE WHEN lease.depth OPERATOR(pg_catalog.>) 0 THEN lease.acquired_at END AS acquired_at,
       now.expires_at,
       pg_catalog.make_interval(secs => lease.ttl_us OPERATOR(pg_catalog./) 1000000.0) AS ttl,
       now.bound, defined.slots, COALESCE(waiting.sessions, 0) AS queue,
       CASE WHEN lease.slot OPERATOR(pg_catalog.<) 65536 THEN 'exclusive' ELSE 'shared' END AS mode
FROM idgen.lease
LEFT JOIN idgen.lease_definition AS defined USING (name)
CROSS JOIN LATERAL idgen.lease_get_state(lease.name, lease.depth, lease.ends_us, lease.ttl_us, lease.revoked, lease.clock,
                                         lease.session, lease.session_key, defined.lock_delay) AS now
LEFT JOIN (SELECT (lock.classid::bigint OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.|) lock.objid::bigint AS key,
                  pg_catalog.count(*) AS sessions
           FROM pg_catalog.pg_locks AS lock
           WHERE lock.locktype OPERATOR(pg_catalog.=) 'advisory' AND lock.objsubid OPERATOR(pg_catalog.=) 27761
             AND lock.database OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database
                                                       WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
           GROUP BY 1) AS waiting ON waiting.key OPERATOR(pg_catalog.=) now.key;

CREATE VIEW idgen.stat_lease AS
SELECT grants, take_overs, renewals, releases, fences, refused, probes, wait_time, idgen.stat_get_reset_time() AS stats_reset
FROM idgen.stat_get_lease();

-- The locks of pg_locks, with names, scopes and depths. 26980 is the kind of named locks.
CREATE VIEW idgen.locks AS
WITH lock AS (
    SELECT (classid::bigint OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.|) objid::bigint AS key, pid, granted, waitstart,
           mode OPERATOR(pg_catalog.=) 'ShareLock' AS shared
    FROM pg_catalog.pg_locks
    WHERE locktype OPERATOR(pg_catalog.=) 'advisory' AND objsubid OPERATOR(pg_catalog.=) 26980
      AND database OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database
                                           WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
)
SELECT named.name, lock.key, lock.pid, CASE WHEN lock.shared THEN 'shared' ELSE 'exclusive' END AS mode,
       CASE WHEN lock.pid IS NULL THEN 'transaction'
            WHEN NOT lock.granted THEN held.waits_for
            WHEN held.session_depth OPERATOR(pg_catalog.>) 0 AND held.transaction_depth OPERATOR(pg_catalog.>) 0 THEN 'both'
            WHEN held.session_depth OPERATOR(pg_catalog.>) 0 THEN 'session'
            WHEN held.transaction_depth OPERATOR(pg_catalog.>) 0 THEN 'transaction' END AS scope,
       lock.granted, held.session_depth OPERATOR(pg_catalog.+) held.transaction_depth AS depth, held.acquired_at,
       lock.waitstart AS waiting_since,
       CASE WHEN NOT lock.granted THEN
           pg_catalog.row_number() OVER (PARTITION BY lock.key, lock.granted ORDER BY lock.waitstart) END AS queue_position,
       CASE WHEN NOT lock.granted THEN pg_catalog.pg_blocking_pids(lock.pid) END AS blocked_by,
       activity.usename AS user, activity.application_name AS application
FROM lock
LEFT JOIN idgen.lock_get_names() AS named ON named.key OPERATOR(pg_catalog.=) lock.key
LEFT JOIN idgen.lock_get_holds() AS held
       ON held.pid OPERATOR(pg_catalog.=) lock.pid AND held.key OPERATOR(pg_catalog.=) lock.key
      AND held.shared OPERATOR(pg_catalog.=) lock.shared AND (held.waits_for IS NULL) OPERATOR(pg_catalog.=) lock.granted
LEFT JOIN pg_catalog.pg_stat_activity AS activity ON activity.pid OPERATOR(pg_catalog.=) lock.pid;

CREATE TRIGGER public_key_row AFTER INSERT OR UPDATE OR DELETE ON idgen.public_key
FOR EACH ROW EXECUTE FUNCTION idgen.public_key_row();
ALTER TABLE idgen.public_key ENABLE ALWAYS TRIGGER public_key_row;

-- Roles that may draw from a segment see its row, and members of pg_read_all_stats see all. Without the security
-- barrier the planner would run a cheap function of the caller on every row before it tests the privilege.
CREATE VIEW idgen.stat_segment WITH (security_barrier) AS
SELECT allocated.tag, allocated.max_id, allocated.step, ring.first_id, ring.last_id, ring.next_first_id, ring.next_last_id, ring.remaining,
       ring.issued, ring.refills,
       pg_catalog.make_interval(secs => ring.refill_us OPERATOR(pg_catalog./) 1000000.0) AS last_refill_time,
       ring.waits,
       pg_catalog.make_interval(secs => ring.wait_us OPERATOR(pg_catalog./) 1000000.0) AS wait_time,
       ring.last_error, allocated.upper_bound, idgen.stat_get_reset_time() AS stats_reset,
       CASE WHEN allocated.reserve IS NULL THEN 'local' ELSE 'coordinator' END AS source,
       supply.coordinator, allocated.reserve, supply.rate,
       -- At most a century, which an interval holds.
       CASE WHEN supply.rate OPERATOR(pg_catalog.>) 0
            THEN pg_catalog.make_interval(secs => LEAST(ring.remaining OPERATOR(pg_catalog./) supply.rate, 3155760000)) END AS survives_for
FROM idgen.segment AS allocated JOIN idgen.stat_get_segment() AS ring USING (creation)
LEFT JOIN idgen.stat_get_segment_supply() AS supply USING (creation)
WHERE pg_catalog.pg_has_role(allocated.owner::oid, 'USAGE') OR pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE')
   OR 0::oid OPERATOR(pg_catalog.=) ANY (allocated.drawers::oid[])
   OR EXISTS (SELECT FROM pg_catalog.unnest(allocated.drawers::oid[]) AS granted (role)
              WHERE pg_catalog.pg_has_role(granted.role, 'USAGE'));

CREATE TRIGGER segment_row BEFORE INSERT OR UPDATE OR DELETE ON idgen.segment
FOR EACH ROW EXECUTE FUNCTION idgen.segment_row();
ALTER TABLE idgen.segment ENABLE ALWAYS TRIGGER segment_row;

CREATE VIEW idgen.stat_snowflake AS
SELECT layout, datacenter, worker, last_id, last_time, issued, batches, borrowed, waits,
       pg_catalog.make_interval(secs => wait_us OPERATOR(pg_catalog./) 1000000.0) AS wait_time,
       ends_at, idgen.stat_get_reset_time() AS stats_reset
FROM idgen.stat_get_snowflake();

CREATE VIEW idgen.workers AS
SELECT lease.name AS pool, lease.slot AS worker_id, lease.state, lease.token, lease.owner, lease.role, lease.acquired_at,
       lease.expires_at, lease.bound, known.not_before, known.not_after
FROM idgen.leases AS lease JOIN idgen.worker_number AS known
  ON known.pool OPERATOR(pg_catalog.=) lease.name AND known.number OPERATOR(pg_catalog.=) lease.slot;

CREATE VIEW idgen.stat_worker AS
SELECT source, state, worker_id, datacenter_id, pool, not_before, not_after, coordinator, pid, renewals, failures, failing_since,
       last_error, changes, idgen.stat_get_reset_time() AS stats_reset
FROM idgen.stat_get_worker();

-- The comments of all objects, and then their privileges.

COMMENT ON SCHEMA idgen IS 'idgen: views and functions for operators';

COMMENT ON FUNCTION snowflake_next() IS 'next id in the layout of idgen.layout';
COMMENT ON FUNCTION snowflake_next(text) IS 'next id in a layout, a preset or a spec';
COMMENT ON FUNCTION snowflake_next_many(int) IS 'count increasing ids in the layout of idgen.layout';
COMMENT ON FUNCTION snowflake_next_many(int, text) IS 'count increasing ids in a layout';
COMMENT ON FUNCTION snowflake_parts(bigint) IS 'parts of an id of idgen.layout; NULL for a field that the layout lacks';
COMMENT ON FUNCTION snowflake_parts(bigint, text) IS
    'parts of an id of a layout; NULL for a field that the layout lacks';
COMMENT ON FUNCTION snowflake_time(bigint) IS 'start of the tick of an id of idgen.layout';
COMMENT ON FUNCTION snowflake_time(bigint, text) IS 'start of the tick of an id of a layout';
COMMENT ON FUNCTION snowflake_floor(timestamptz) IS
    'least id of the tick that contains a time, in the layout of idgen.layout; clamped to the layout';
COMMENT ON FUNCTION snowflake_floor(timestamptz, text) IS
    'least id of the tick that contains a time, in a layout; clamped to the layout';
COMMENT ON FUNCTION snowflake_ceil(timestamptz) IS
    'greatest id of the tick that contains a time, in the layout of idgen.layout; clamped to the layout';
COMMENT ON FUNCTION snowflake_ceil(timestamptz, text) IS
    'greatest id of the tick that contains a time, in a layout; clamped to the layout';
COMMENT ON FUNCTION snowflake_make(timestamptz, int, bigint, int) IS
    'id with these parts in the layout of idgen.layout, for backfill';
COMMENT ON FUNCTION snowflake_make(timestamptz, int, bigint, text) IS 'id with these parts in a layout, for backfill';
COMMENT ON FUNCTION snowflake_make(timestamptz, int, bigint, int, text) IS
    'id with these parts in a layout with datacenters, for backfill';
COMMENT ON FUNCTION snowflake_observe(bigint, boolean) IS
    'moves all ids of this server past an id of idgen.layout, as setval does for a sequence; returns the time where they begin';
COMMENT ON FUNCTION snowflake_observe(bigint, text, boolean) IS
    'moves all ids of this server past an id of a layout, as setval does for a sequence; returns the time where they begin';
COMMENT ON FUNCTION snowflake_settled() IS
    'greatest id of idgen.layout up to which no transaction of this server can commit a row any more; for use in a later statement';
COMMENT ON FUNCTION snowflake_settled(text) IS
    'greatest id of a layout up to which no transaction of this server can commit a row any more; for use in a later statement';
COMMENT ON FUNCTION snowflake_encode(bigint, text) IS
    'id as text: base2, base32, base36, base58, base62, base64, hex, sort32 or sort62; the last two sort like the ids in COLLATE "C"';
COMMENT ON FUNCTION snowflake_decode(text, text) IS 'id of a text in one of the formats of snowflake_encode';
COMMENT ON FUNCTION snowflake_layout() IS
    'canonical spec, bits, unit, epoch, capacity and end of the layout of idgen.layout';
COMMENT ON FUNCTION snowflake_layout(text) IS 'canonical spec, bits, unit, epoch, capacity and end of a layout';

COMMENT ON FUNCTION uuidv7_next() IS 'next UUID of version 7: greater than all that this server made before';
COMMENT ON FUNCTION uuidv7_next(boolean) IS
    'next UUID of version 7; if node is true, its first 31 random bits are the worker id of this server';
COMMENT ON FUNCTION uuidv7_next_many(int) IS 'count increasing UUIDs of version 7';
COMMENT ON FUNCTION uuidv7_next_many(int, boolean) IS 'count increasing UUIDs of version 7, as uuidv7_next(node) makes them';
COMMENT ON FUNCTION uuidv7_floor(timestamptz) IS 'least UUID of version 7 of the millisecond that contains a time';
COMMENT ON FUNCTION uuidv7_ceil(timestamptz) IS 'greatest UUID of version 7 of the millisecond that contains a time';
COMMENT ON FUNCTION uuidv7_time(uuid) IS 'time in a UUID of version 7';

COMMENT ON VIEW idgen.stat_snowflake IS
    'statistics of ids, one row for each layout and worker id in use on this server';
COMMENT ON FUNCTION idgen.stat_get_snowflake() IS 'rows of the view idgen.stat_snowflake';
COMMENT ON VIEW idgen.stat_clock IS
    'high-water mark, lead of ids over the wall clock, and backward steps of the wall clock';
COMMENT ON FUNCTION idgen.stat_get_clock() IS 'row of the view idgen.stat_clock';
COMMENT ON FUNCTION idgen.status() IS 'versions, settings, worker id and checks';
COMMENT ON FUNCTION idgen.reset_stats() IS 'sets the counters of all views to zero';

COMMENT ON TABLE idgen.segment IS
    'segments: one row for each tag, with the highest value that any server may have handed out';
COMMENT ON COLUMN idgen.segment.tag IS 'name of the segment, 1 to 255 bytes';
COMMENT ON COLUMN idgen.segment.max_id IS
    'highest value that may have been handed out; it falls only when a stopping server gives unused values back';
COMMENT ON COLUMN idgen.segment.step IS
    'number of values in the last range taken; adapts between min_step and max_step';
COMMENT ON COLUMN idgen.segment.min_step IS 'lowest step';
COMMENT ON COLUMN idgen.segment.max_step IS 'highest step, at most 1000000000';
COMMENT ON COLUMN idgen.segment.target_duration IS
    'how long a range should last: a range used up faster doubles the step, one that lasts twice as long halves it';
COMMENT ON COLUMN idgen.segment.stride IS
    'distance between two values; several primaries use one stride and different residues';
COMMENT ON COLUMN idgen.segment.residue IS 'remainder of each value divided by the stride';
COMMENT ON COLUMN idgen.segment.upper_bound IS 'highest value that may be handed out';
COMMENT ON COLUMN idgen.segment.owner IS 'role that may alter, drop and grant';
COMMENT ON COLUMN idgen.segment.drawers IS 'roles besides the owner that may draw; - is PUBLIC';
COMMENT ON COLUMN idgen.segment.creation IS 'random number of this creation of the tag; set by a trigger';
COMMENT ON COLUMN idgen.segment.version IS
    'number of changes of the columns that determine values, refills excluded; set by a trigger';
COMMENT ON COLUMN idgen.segment.created_in IS 'id of the transaction that created the row; set by a trigger';
COMMENT ON COLUMN idgen.segment.changed_in IS
    'id of the transaction that last changed the row, refills excluded; set by a trigger';
COMMENT ON COLUMN idgen.segment.server IS 'number by which the coordinator knows this server; NULL unless the segment is attached';
COMMENT ON COLUMN idgen.segment.reserve IS 'how long values last while the coordinator is away; NULL unless the segment is attached';
COMMENT ON COLUMN idgen.segment.source IS 'tag of the coordinator that the last values came from: system identifier, database, creation, version';
COMMENT ON COLUMN idgen.segment.history IS 'at a coordinator: system identifier, timeline, database and directory under which it last granted values';
COMMENT ON COLUMN idgen.segment.received IS 'highest value of the coordinator when the segment was detached; NULL once the coordinator knows it';
COMMENT ON TABLE idgen.segment_server IS 'at a coordinator: servers that are attached to its segments';
COMMENT ON COLUMN idgen.segment_server.tag IS 'segment that the server draws from';
COMMENT ON COLUMN idgen.segment_server.server IS 'number of the attached server';
COMMENT ON COLUMN idgen.segment_server.name IS 'name of the attached server: its host name, port and data directory';
COMMENT ON COLUMN idgen.segment_server.max_id IS 'highest value that the server has received';
COMMENT ON COLUMN idgen.segment_server.history IS 'history of the coordinator at the last report: see idgen.segment.history';
COMMENT ON COLUMN idgen.segment_server.reported_at IS 'time of the last report';
COMMENT ON COLUMN idgen.segment_server.first_id IS 'first value of the newest grants, those that no other grant separates; NULL if none can be given back';
COMMENT ON COLUMN idgen.segment_server.last_id IS 'last value of the newest grants';
COMMENT ON FUNCTION idgen.segment_row() IS
    'trigger of idgen.segment: sets creation, version and transaction ids, and announces changes to all sessions';
COMMENT ON TRIGGER segment_row ON idgen.segment IS
    'sets creation, version and transaction ids, and announces changes to all sessions';
COMMENT ON FUNCTION segment_next(text) IS 'next value of a segment';
COMMENT ON FUNCTION segment_next_many(text, int) IS 'that many values of a segment, increasing';
COMMENT ON FUNCTION segment_reserve(text, bigint) IS
    'that many consecutive values of a segment, for a client that counts them itself';
COMMENT ON FUNCTION segment_create(text, bigint, bigint, bigint, bigint, interval, bigint, bigint, bigint) IS
    'creates a segment that the caller owns';
COMMENT ON FUNCTION segment_alter(text, bigint, bigint, bigint, bigint, interval, bigint, bigint, bigint, text) IS
    'alters a segment: NULL keeps a setting; max_id cannot be lowered';
COMMENT ON FUNCTION segment_drop(text) IS 'drops a segment';
COMMENT ON FUNCTION segment_grant(text, text) IS 'lets a role, or public, draw from a segment';
COMMENT ON FUNCTION segment_revoke(text, text) IS 'revokes what segment_grant granted';
COMMENT ON FUNCTION segment_attach(text, interval) IS
    'lets a segment draw from that of the same name at the coordinator, with values for the reserve fetched ahead';
COMMENT ON FUNCTION segment_detach(text) IS 'ends the attachment of a segment to the coordinator';
COMMENT ON FUNCTION segment_request(text, bigint, text, bigint, bigint) IS
    'at a coordinator: reports what an attached server has received, and grants it values';
COMMENT ON FUNCTION segment_confirm() IS 'at a coordinator: waits until the synchronous standbys have all grants';
COMMENT ON FUNCTION segment_return(text, bigint, bigint, bigint) IS
    'at a coordinator: a server gives back unused values; true if they can be granted again';
COMMENT ON FUNCTION segment_leave(text, bigint, bigint) IS 'at a coordinator: a server is no longer attached';
COMMENT ON FUNCTION segment_resume(text, bigint) IS
    'at a coordinator: grants values again from above max_id on, although attached servers have not reported';
COMMENT ON VIEW idgen.stat_segment IS
    'segments with values in shared memory: their ranges, refills and waits; shows those that the user may draw from';
COMMENT ON FUNCTION idgen.stat_get_segment() IS 'rows of the view idgen.stat_segment';
COMMENT ON FUNCTION idgen.stat_get_segment_supply() IS 'columns of attached segments of the view idgen.stat_segment';

COMMENT ON FUNCTION lock_key(text) IS 'key of a lock''s name: the first 8 bytes of its SHA-256, big-endian';
COMMENT ON FUNCTION lock_acquire(text, boolean) IS
    'acquires a named lock for the session; waits as long as lock_timeout allows';
COMMENT ON FUNCTION lock_acquire_xact(text, boolean) IS
    'acquires a named lock for the transaction; waits as long as lock_timeout allows';
COMMENT ON FUNCTION lock_try_acquire(text, interval, boolean) IS
    'acquires a named lock for the session within a timeout; false leaves nothing held';
COMMENT ON FUNCTION lock_try_acquire_xact(text, interval, boolean) IS
    'acquires a named lock for the transaction within a timeout; false leaves nothing held';
COMMENT ON FUNCTION lock_release(text, boolean) IS
    'releases a session''s named lock once; false, with a warning, if the session does not hold it';
COMMENT ON FUNCTION lock_acquire_many(text[], boolean) IS 'acquires several named locks for the session, or none';
COMMENT ON FUNCTION lock_acquire_many_xact(text[], boolean) IS
    'acquires several named locks for the transaction, or none';
COMMENT ON FUNCTION lock_try_acquire_many(text[], interval, boolean) IS
    'acquires several named locks for the session within a timeout, or none';
COMMENT ON FUNCTION lock_try_acquire_many_xact(text[], interval, boolean) IS
    'acquires several named locks for the transaction within a timeout, or none';
COMMENT ON FUNCTION lock_release_many(text[], boolean) IS
    'releases several of a session''s named locks, each once; false if one was not held';
COMMENT ON FUNCTION row_version() IS
    'trigger for BEFORE UPDATE: refuses an update of a row that has changed since it was read, by a version column';
COMMENT ON VIEW idgen.locks IS 'named locks that are held or waited for in this database';
COMMENT ON FUNCTION idgen.lock_get_names() IS 'names of locks, for the view idgen.locks';
COMMENT ON FUNCTION idgen.lock_get_holds() IS 'scope and depth of each hold, for the view idgen.locks';

COMMENT ON FUNCTION lease_acquire(text, interval, text, jsonb, bigint, boolean, boolean) IS
    'acquires a lease and returns its fencing token; waits up to lock_timeout';
COMMENT ON FUNCTION lease_try_acquire(text, interval, interval, text, jsonb, bigint, boolean, boolean) IS
    'acquires a lease if a slot becomes free within the timeout; otherwise returns no row';
COMMENT ON FUNCTION idgen.lease_definition_changed() IS 'trigger of idgen.lease_definition';
COMMENT ON TRIGGER lease_definition_changed ON idgen.lease_definition IS 'announces changes to all sessions';
COMMENT ON FUNCTION idgen.lease_lock_row(tid, boolean) IS 'locks the row of a slot that a grant has found free';
COMMENT ON FUNCTION lease_renew(text, bigint, interval) IS
    'extends a lease from now on; returns its new end, or NULL if it is bound to a session';
COMMENT ON FUNCTION lease_renew_many(text[], bigint[], interval) IS
    'extends those of several leases that are still held, and returns them';
COMMENT ON FUNCTION lease_release(text, bigint) IS
    'releases a lease once; false if it was acquired more often than released';
COMMENT ON FUNCTION lease_fence(text, bigint) IS
    'lets the transaction commit only if the token is current; delays take-overs until it ends';
COMMENT ON FUNCTION lease_guard() IS
    'BEFORE trigger: refuses writes of transactions that have not fenced by the lease in its argument';
COMMENT ON FUNCTION lease_define(text, int, interval, interval, int, boolean) IS
    'defines the slots of a lease, its ttl, the lock delay after a holder vanished, its first slot, and if NOTIFY tells of its terms';
COMMENT ON FUNCTION lease_drop(text) IS 'drops a lease that is not held';
COMMENT ON FUNCTION lease_revoke(text, int) IS 'ends the term in a slot of a lease; false if the slot is free';
COMMENT ON TABLE idgen.lease_definition IS 'definitions of leases';
COMMENT ON COLUMN idgen.lease_definition.name IS 'name, 1 to 255 bytes';
COMMENT ON COLUMN idgen.lease_definition.slots IS 'how many holders it can have at once';
COMMENT ON COLUMN idgen.lease_definition.ttl IS 'length of a term unless its holder gives another';
COMMENT ON COLUMN idgen.lease_definition.lock_delay IS 'how long a slot stays unavailable after its holder vanished';
COMMENT ON COLUMN idgen.lease_definition.owner IS 'role that defined it; its members may change it';
COMMENT ON COLUMN idgen.lease_definition.first_slot IS 'lowest slot; of a pool, the lowest worker id';
COMMENT ON COLUMN idgen.lease_definition.notify IS 'NOTIFY idgen_lease tells of each term';
COMMENT ON TABLE idgen.lease IS 'slots of leases and their terms; shown by the view idgen.leases';
COMMENT ON COLUMN idgen.lease.name IS 'name of the lease';
COMMENT ON COLUMN idgen.lease.slot IS 'number of the slot';
COMMENT ON COLUMN idgen.lease.token IS 'fencing token of the current or last term';
COMMENT ON COLUMN idgen.lease.depth IS 'how often acquired and not yet released; 0 if free';
COMMENT ON COLUMN idgen.lease.owner IS 'name that the holder gave itself';
COMMENT ON COLUMN idgen.lease.role IS 'role that acquired it; its members may act as the holder';
COMMENT ON COLUMN idgen.lease.data IS 'data that the holder publishes';
COMMENT ON COLUMN idgen.lease.acquired_at IS 'start of the term, by the wall clock';
COMMENT ON COLUMN idgen.lease.ttl_us IS 'length of the term after a renewal, in microseconds';
COMMENT ON COLUMN idgen.lease.ends_us IS
    'end of the term; for a free slot, when it was freed; microseconds of the clock';
COMMENT ON COLUMN idgen.lease.clock IS
    'identifies CLOCK_BOOTTIME: the boot of the machine, and the offset of the time namespace';
COMMENT ON COLUMN idgen.lease.revoked IS 'freed by lease_revoke(); the lock delay applies';
COMMENT ON COLUMN idgen.lease.session IS 'start time of the server whose session it is bound to; NULL if not bound';
COMMENT ON COLUMN idgen.lease.session_key IS
    'key of the advisory lock that the session holds; random, because pg_locks is public';
COMMENT ON SEQUENCE idgen.lease_token IS 'fencing tokens';
COMMENT ON VIEW idgen.leases IS 'slots of leases, and their holders';
COMMENT ON FUNCTION idgen.lease_get_state(text, int, bigint, bigint, boolean, text, bigint, bigint, interval) IS
    'state of a slot, for the view idgen.leases';
COMMENT ON VIEW idgen.stat_lease IS 'counters of leases, over all databases';
COMMENT ON FUNCTION idgen.stat_get_lease() IS 'counters for the view idgen.stat_lease';

COMMENT ON FUNCTION worker_acquire(text, text, interval, timestamptz, int) IS
    'acquires a worker id of a pool and an interval of id time; bound to the session unless a ttl is given';
COMMENT ON FUNCTION worker_renew(text, bigint, timestamptz, timestamptz) IS
    'extends the lease and the id time of a worker id, if its end is the one that the caller was last told';
COMMENT ON FUNCTION worker_renew(text, bigint, interval) IS
    'deprecated: renews a worker id without comparison, for keepers of idgen 0.7';
COMMENT ON FUNCTION worker_confirm(text, bigint) IS
    'waits until the synchronous standbys have the id time of a worker id, and returns its end';
COMMENT ON FUNCTION worker_release(text, bigint, timestamptz, timestamptz) IS
    'releases a worker id; given the last time in its ids, the next holder begins right after it';
COMMENT ON FUNCTION worker_move(text, text) IS
    'moves the worker ids of a pool to another one with their id times and leases, and drops the pool; returns their count';
COMMENT ON FUNCTION worker_correct(text, int, timestamptz) IS
    'records that no id at or after a time was issued under a free worker id; returns the time recorded before';
COMMENT ON TABLE idgen.worker_number IS 'id times of the last holder of each worker id';
COMMENT ON COLUMN idgen.worker_number.pool IS 'name of the pool';
COMMENT ON COLUMN idgen.worker_number.number IS 'the worker id: a slot of the lease of that name';
COMMENT ON COLUMN idgen.worker_number.not_before IS 'start of the id times of the last holder';
COMMENT ON COLUMN idgen.worker_number.not_after IS 'no id of that holder has this time or a later one';
COMMENT ON COLUMN idgen.worker_number.token IS 'token of the lease of that holder';
COMMENT ON COLUMN idgen.worker_number.owner IS 'name that the holder gave itself';
COMMENT ON COLUMN idgen.worker_number.released IS 'released by worker_release()';
COMMENT ON FUNCTION worker_begin_history(timestamptz) IS
    'lets a copy of the coordinator grant worker ids; returns the time from which it grants them without a wait';
COMMENT ON TABLE idgen.worker_history IS 'server, timeline and data directory that grant worker ids from this database';
COMMENT ON COLUMN idgen.worker_history.one IS 'always true: there is at most one row';
COMMENT ON COLUMN idgen.worker_history.system_identifier IS 'system identifier of the server; 0 in a dump';
COMMENT ON COLUMN idgen.worker_history.timeline IS 'timeline of the server; 0 in a dump';
COMMENT ON COLUMN idgen.worker_history.database IS 'OID of the database; 0 in a dump';
COMMENT ON COLUMN idgen.worker_history.place IS 'inode and birth time of PG_VERSION in the data directory; a copy has others';
COMMENT ON COLUMN idgen.worker_history.since IS
    'when a failover, a restore or a new history was last noticed; -infinity if the history is complete';
COMMENT ON COLUMN idgen.worker_history.first_token IS 'lowest token granted since then; lower ones cannot be renewed';
COMMENT ON COLUMN idgen.worker_history.longest IS 'longest time from the clock to the end of id times, under any settings so far';
COMMENT ON TABLE idgen.public_key IS 'keys of public ids: one row for each key of a prefix';
COMMENT ON COLUMN idgen.public_key.prefix IS 'what the texts begin with, before an underscore';
COMMENT ON COLUMN idgen.public_key.version IS 'number of the key; the highest one makes texts';
COMMENT ON COLUMN idgen.public_key.form IS 'short or long';
COMMENT ON COLUMN idgen.public_key.secret IS '32 random bytes; NULL if the key is retired';
COMMENT ON COLUMN idgen.public_key.owner IS
    'role that may use, rotate, retire, drop, alter and grant; the same for all keys of a prefix';
COMMENT ON COLUMN idgen.public_key.users IS 'roles besides the owner that may make and decode texts; - is PUBLIC';
COMMENT ON COLUMN idgen.public_key.created IS 'time of the definition or the rotation';
COMMENT ON COLUMN idgen.public_key.retired IS 'time of the retirement; NULL if texts of the key decode';
COMMENT ON FUNCTION idgen.public_key_row() IS
    'trigger of idgen.public_key: announces changes to all sessions';
COMMENT ON TRIGGER public_key_row ON idgen.public_key IS 'announces changes to all sessions';
COMMENT ON FUNCTION idgen.public_key_secret() IS 'a new secret, for the statements that add a key';
COMMENT ON FUNCTION public_id(text, bigint) IS 'text of an id, by the newest key of a prefix';
COMMENT ON FUNCTION public_id_decode(text, text) IS 'id of a text that public_id made';
COMMENT ON FUNCTION public_id_try_decode(text, text) IS 'id of a text that public_id made; NULL for another text';
COMMENT ON FUNCTION id_mask(text, bigint) IS 'number that stands for an id, by the newest key of a prefix';
COMMENT ON FUNCTION id_unmask(text, bigint) IS 'id of a number that id_mask made';
COMMENT ON FUNCTION public_id_define(text, text) IS 'creates a prefix that the caller owns, with a key of the form short or long';
COMMENT ON FUNCTION public_id_rotate(text, text) IS
    'adds a key to a prefix and returns its version; texts of older keys go on decoding';
COMMENT ON FUNCTION public_id_retire(text, int) IS 'removes the secret of an older key: its texts no longer decode';
COMMENT ON FUNCTION public_id_drop(text) IS 'drops a prefix with all of its keys';
COMMENT ON FUNCTION public_id_alter(text, text) IS 'makes another role the owner of a prefix';
COMMENT ON FUNCTION public_id_grant(text, text) IS 'lets a role, or public, make and decode texts of a prefix';
COMMENT ON FUNCTION public_id_revoke(text, text) IS 'revokes what public_id_grant granted';

COMMENT ON FUNCTION idgen.stat_get_reset_time() IS 'time of the last reset of the counters, for the column stats_reset';
COMMENT ON VIEW idgen.workers IS 'worker ids of pools that were ever granted, and their holders';
COMMENT ON VIEW idgen.stat_worker IS 'worker id of this server, and the state of its lease';
COMMENT ON FUNCTION idgen.stat_get_worker() IS 'row of the view idgen.stat_worker';

-- PUBLIC may generate and decode ids and read the views. Resetting counters and moving ids are for administrators: a
-- superuser grants them.
GRANT USAGE ON SCHEMA idgen TO PUBLIC;
GRANT SELECT ON idgen.stat_snowflake, idgen.stat_clock, idgen.stat_segment, idgen.locks TO PUBLIC;
REVOKE EXECUTE ON FUNCTION idgen.reset_stats() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION snowflake_observe(bigint, boolean), snowflake_observe(bigint, text, boolean) FROM PUBLIC;
-- A superuser grants the creation of segments. The creator owns the segment.
REVOKE EXECUTE ON FUNCTION segment_create(text, bigint, bigint, bigint, bigint, interval, bigint, bigint, bigint) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION segment_attach(text, interval) FROM PUBLIC;
-- For the trigger of idgen.segment only, which needs no privilege.
REVOKE EXECUTE ON FUNCTION idgen.segment_row() FROM PUBLIC;
-- The table of leases has tokens, so it is not readable: the view hides them. A superuser grants the definition of leases.
-- The role that defines a name owns it.
GRANT SELECT ON idgen.leases, idgen.workers, idgen.stat_worker, idgen.stat_lease, idgen.lease_definition TO PUBLIC;
REVOKE EXECUTE ON FUNCTION lease_define(text, int, interval, interval, int, boolean) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION idgen.lease_lock_row(tid, boolean), idgen.lease_definition_changed() FROM PUBLIC;
-- The caller declares that the origin of a copy grants no more worker ids. Grant it to administrators only.
REVOKE EXECUTE ON FUNCTION worker_begin_history(timestamptz) FROM PUBLIC;
-- For a dump and its restore by the owner of the database. Existing rows change through functions only.
GRANT SELECT, INSERT ON idgen.segment, idgen.lease_definition, idgen.worker_number, idgen.worker_history TO pg_database_owner;
-- Monitoring still reads all views if an administrator revokes them from PUBLIC. Last, as in the upgrade script: the order of
-- grants is that of the privileges.
GRANT USAGE ON SCHEMA idgen TO pg_monitor;
GRANT SELECT ON idgen.stat_snowflake, idgen.stat_clock, idgen.stat_segment, idgen.stat_lease, idgen.stat_worker, idgen.locks,
    idgen.leases, idgen.workers, idgen.lease_definition TO pg_monitor;
GRANT EXECUTE ON FUNCTION idgen.status(), idgen.stat_get_snowflake(), idgen.stat_get_clock(), idgen.stat_get_segment(),
    idgen.stat_get_lease(), idgen.stat_get_worker(), idgen.stat_get_reset_time(), idgen.lock_get_names(), idgen.lock_get_holds(),
    idgen.lease_get_state(text, int, bigint, bigint, boolean, text, bigint, bigint, interval) TO pg_monitor;
-- The creator owns the prefix. The secrets are for dumps by the owner of the database only; every role may see the rest.
REVOKE EXECUTE ON FUNCTION public_id_define(text, text) FROM PUBLIC;
-- For the trigger and the statements of idgen.public_key only.
REVOKE EXECUTE ON FUNCTION idgen.public_key_row(), idgen.public_key_secret() FROM PUBLIC;
REVOKE ALL ON idgen.public_key FROM PUBLIC;
GRANT SELECT (prefix, version, form, owner, users, created, retired) ON idgen.public_key TO PUBLIC;
GRANT SELECT, INSERT ON idgen.public_key TO pg_database_owner;
-- For a dump and its restore, as above. The names of the servers are for administrators.
GRANT SELECT, INSERT ON idgen.segment_server TO pg_database_owner;
GRANT SELECT ON idgen.segment_server TO pg_monitor;
GRANT EXECUTE ON FUNCTION idgen.stat_get_segment_supply() TO pg_monitor;
