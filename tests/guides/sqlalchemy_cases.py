"""Cases of the guide on SQLAlchemy. Runs those that its arguments name, in the directory of the example."""

import json
import os
import sys

sys.path.insert(0, os.getcwd())

from sqlalchemy import BigInteger, Identity, MetaData, Table, create_engine, event, func, insert, select, text
from sqlalchemy.exc import DataError
from sqlalchemy.orm import Mapped, Session, mapped_column, orm_insert_sentinel
from sqlalchemy.schema import DDL

from models import Base, Customer, Order, draw_ids
from statement_counts import run_cases

COUNT = 1000
engine = create_engine("postgresql+psycopg://")


class Unmarked(Base):
    __tablename__ = "unmarked"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, server_default=func.snowflake_next())
    name: Mapped[str]


class Sentinel(Base):
    __tablename__ = "sentinel"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, server_default=func.snowflake_next())
    name: Mapped[str]
    _sentinel: Mapped[int] = orm_insert_sentinel()


class WithIdentity(Base):
    __tablename__ = "with_identity"
    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    name: Mapped[str]


event.listen(
    WithIdentity.__table__,
    "after_create",
    DDL("ALTER TABLE with_identity ALTER COLUMN id DROP IDENTITY, ALTER COLUMN id SET DEFAULT snowflake_next()"),
)


class Narrow(Base):
    __tablename__ = "narrow"
    id: Mapped[int] = mapped_column(primary_key=True, server_default=func.snowflake_next(monotonic=True))
    name: Mapped[str]


def fetch(sql):
    with engine.begin() as connection:
        return connection.execute(text(sql)).all()


def check_ids(session, model, objects):
    """Each object has the id of its own row, and ids increase in the order of the objects."""
    ids = [made.id for made in objects]
    assert len(set(ids)) == COUNT and ids == sorted(ids)
    names = dict(session.execute(select(model.id, model.name)).all())
    assert all(names[made.id] == str(n) for n, made in enumerate(objects))


def add_all(model):
    objects = [model(name=str(n)) for n in range(COUNT)]
    with Session(engine, expire_on_commit=False) as session:
        session.add_all(objects)
        session.commit()
        check_ids(session, model, objects)
    return objects


def marked():
    customers = add_all(Customer)
    with Session(engine) as session:
        session.add_all([Order(customer_id=customer.id) for customer in customers])
        session.commit()


def parents_and_children():
    with Session(engine) as session:
        orders = [Order(customer=Customer(name=str(n))) for n in range(COUNT)]
        session.add_all(orders)
        session.commit()
        check_ids(session, Customer, [order.customer for order in orders])


def unmarked():
    add_all(Unmarked)


def sentinel():
    add_all(Sentinel)


def with_identity():
    add_all(WithIdentity)


def reflected():
    table = Table("customers", MetaData(), autoload_with=engine)
    with engine.begin() as connection:
        made = insert(table).returning(table.c.id, sort_by_parameter_order=True)
        connection.execute(made, [{"name": str(n)} for n in range(COUNT)])


def narrow():
    try:
        add_all(Narrow)
    except DataError as error:
        assert error.orig.sqlstate == "22003", error
    else:
        raise AssertionError("an int takes a snowflake id")


def insert_without_returning():
    with Session(engine) as session:
        session.execute(insert(Customer), [{"name": str(n)} for n in range(COUNT)])
        session.commit()


def insert_returning():
    with Session(engine) as session:
        made = insert(Customer).returning(Customer, sort_by_parameter_order=True)
        customers = session.scalars(made, [{"name": str(n)} for n in range(COUNT)]).all()
        session.commit()
        check_ids(session, Customer, customers)


def drawn():
    with Session(engine) as session:
        rows = [{"id": id, "name": str(n)} for n, id in enumerate(draw_ids(session, COUNT))]
        customers = session.scalars(insert(Customer).returning(Customer), rows).all()
        session.commit()
        check_ids(session, Customer, customers)


def drawn_without_returning():
    with Session(engine) as session:
        session.add_all([Customer(id=id, name="a") for id in draw_ids(session, COUNT)])
        session.commit()


def as_json():
    with Session(engine) as session:
        order = Order(customer=Customer(name="a"))
        session.add(order)
        session.commit()
        with open(os.environ["BODY"], "w") as file:
            file.write(f"{order.id} {json.dumps(order.as_json())}")


# The tables of the example come from its migrations.
Base.metadata.create_all(engine)
run_cases(fetch, globals(), sys.argv[1:])
