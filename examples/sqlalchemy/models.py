"""Snowflake ids for SQLAlchemy's models. Needs SQLAlchemy 2.1 and psycopg 3."""

from typing import Annotated

from sqlalchemy import BigInteger, Column, ForeignKey, Table, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

# monotonic: within a statement, later rows have greater ids. So SQLAlchemy can insert many rows in one statement and
# know which row has which id. It does not change the table, whose default is snowflake_next().
snowflake_id = Annotated[
    int, mapped_column(BigInteger, primary_key=True, server_default=func.snowflake_next(monotonic=True))
]


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customers"

    id: Mapped[snowflake_id]
    name: Mapped[str]


# An association table needs no id: its key is made of foreign keys.
watchers = Table(
    "watchers",
    Base.metadata,
    Column("order_id", ForeignKey("orders.id"), primary_key=True),
    Column("customer_id", ForeignKey("customers.id"), primary_key=True),
)


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[snowflake_id]
    customer_id: Mapped[int] = mapped_column(ForeignKey("customers.id"))
    customer: Mapped[Customer] = relationship()
    watchers: Mapped[list[Customer]] = relationship(secondary=watchers)

    def as_json(self):
        # As texts: JavaScript rounds a number above 2^53.
        return {"id": str(self.id), "customer": str(self.customer_id)}


def draw_ids(session, count):
    """Draws increasing ids in one statement, for rows that need their ids before they are inserted."""
    return session.scalars(select(func.snowflake_next_many(count))).all()
