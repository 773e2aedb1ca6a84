"""Runs migrations. The environment says where the database is: PGDATABASE, PGHOST, PGPORT, PGUSER."""

from alembic import context
from sqlalchemy import create_engine

from models import Base

with create_engine("postgresql+psycopg://").connect() as connection:
    context.configure(connection=connection, target_metadata=Base.metadata)
    with context.begin_transaction():
        context.run_migrations()
