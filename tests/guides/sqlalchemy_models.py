

# What the test adds to the models of the example.

from sqlalchemy import UniqueConstraint


class Company(Customer):
    """Joined inheritance: the key is a foreign key."""

    __tablename__ = "companies"

    id: Mapped[int] = mapped_column(ForeignKey("customers.id"), primary_key=True)
    number: Mapped[str]


class Membership(Base):
    """An association object, with a key of its own."""

    __tablename__ = "memberships"
    __table_args__ = (UniqueConstraint("company_id", "customer_id"),)

    id: Mapped[snowflake_id]
    company_id: Mapped[int] = mapped_column(ForeignKey("companies.id"))
    customer_id: Mapped[int] = mapped_column(ForeignKey("customers.id"))


class Plain(Base):
    """What the guide warns of: a serial."""

    __tablename__ = "plain"

    id: Mapped[int] = mapped_column(primary_key=True)
