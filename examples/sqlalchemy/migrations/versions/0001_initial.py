"""The tables as they were before idgen: keys of type serial."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade():
    op.create_table(
        "customers",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String, nullable=False),
    )
    op.create_table(
        "orders",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("customer_id", sa.Integer, sa.ForeignKey("customers.id"), nullable=False),
    )
    op.create_table(
        "watchers",
        sa.Column("order_id", sa.Integer, sa.ForeignKey("orders.id"), primary_key=True),
        sa.Column("customer_id", sa.Integer, sa.ForeignKey("customers.id"), primary_key=True),
    )


def downgrade():
    op.drop_table("watchers")
    op.drop_table("orders")
    op.drop_table("customers")
