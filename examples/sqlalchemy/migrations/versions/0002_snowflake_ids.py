"""Changes tables that exist to snowflake ids. Rows keep their ids."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade():
    # If the locks are not free in time, fail, instead of blocking all other clients of the tables.
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("CREATE EXTENSION IF NOT EXISTS idgen")
    # All foreign keys first. A change from int rewrites the table; a bigint stays as it is.
    for table, column in [("orders", "customer_id"), ("watchers", "order_id"), ("watchers", "customer_id")]:
        op.alter_column(table, column, type_=sa.BigInteger)
    for table in ["customers", "orders"]:
        op.alter_column(table, "id", type_=sa.BigInteger, server_default=sa.func.snowflake_next())
        op.execute(f"DROP SEQUENCE {table}_id_seq")


def downgrade():
    # No row may come between the reading of the greatest id and the new default.
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("LOCK TABLE customers, orders")
    # The columns stay bigint: the snowflake ids do not fit into an int.
    for table in ["customers", "orders"]:
        op.execute(f"CREATE SEQUENCE {table}_id_seq OWNED BY {table}.id")
        op.execute(f"SELECT setval('{table}_id_seq', coalesce(max(id), 0) + 1, false) FROM {table}")
        op.alter_column(table, "id", server_default=sa.text(f"nextval('{table}_id_seq')"))
