"""Cases of the guide on Django. Runs those that its arguments name, in the directory of the example."""

import os
import sys

import django

sys.path.insert(0, os.getcwd())
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
django.setup()

from django.db import IntegrityError, connection, models, transaction
from django.db.models import Func
from django.db.models.expressions import DatabaseDefault
from django.template import engines
from django.test import Client
from django.test.utils import setup_test_environment

from shop.ids import draw_ids
from shop.models import Customer, Item, Order
from statement_counts import run_cases

COUNT = 1000


def fetch(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def check_ids(objects):
    """Each object has the id of its own row, and ids increase in the order of the objects."""
    ids = [made.id for made in objects]
    assert len(set(ids)) == COUNT and ids == sorted(ids)
    return type(objects[0]).objects.in_bulk(ids)


def bulk_create():
    customers = Customer.objects.bulk_create([Customer(name=str(n)) for n in range(COUNT)])
    orders = Order.objects.bulk_create([Order(customer=customer) for customer in customers])
    stored = check_ids(customers)
    assert all(stored[customer.id].name == customer.name for customer in customers)
    stored = check_ids(orders)
    assert all(stored[order.id].customer_id == order.customer_id for order in orders)


def save():
    customers = [Customer.objects.create(name=str(n)) for n in range(COUNT)]
    check_ids(customers)


def drawn():
    customer = Customer.objects.create(name="a")
    orders = [Order(id=id, customer=customer) for id in draw_ids(Order, COUNT)]
    items = [Item(order=order, product="book") for order in orders]
    Order.objects.bulk_create(orders)
    Item.objects.bulk_create(items)
    stored = check_ids(items)
    assert all(stored[item.id].order_id == item.order.id for item in items)


def save_with_drawn_id():
    ids = iter(draw_ids(Customer, 2))
    Customer(id=next(ids), name="a").save()
    Customer(id=next(ids), name="b").save(force_insert=True)


def db_default():
    class Parent(models.Model):
        id = models.BigIntegerField(primary_key=True, db_default=Func(function="snowflake_next"))
        name = models.TextField()

        class Meta:
            app_label = "shop"

    class Child(models.Model):
        parent = models.ForeignKey(Parent, models.CASCADE)

        class Meta:
            app_label = "shop"

    with connection.schema_editor() as editor:
        editor.create_model(Parent)
        editor.create_model(Child)
    saved = Parent.objects.create(name="a")
    assert isinstance(saved.id, int)
    parents = Parent.objects.bulk_create([Parent(name=str(n)) for n in range(COUNT)])
    assert Parent.objects.count() == 1 + COUNT
    assert all(isinstance(parent.id, DatabaseDefault) for parent in parents), "the ids are known"
    try:
        with transaction.atomic():
            Child.objects.create(parent=parents[0])
    except IntegrityError as error:
        assert error.__cause__.sqlstate == "23502", error
    else:
        raise AssertionError("a child of an unknown id is accepted")


def ignored_conflicts():
    customers = Customer.objects.bulk_create([Customer(name="a")], ignore_conflicts=True)
    assert customers[0].id is None


def web():
    setup_test_environment()
    order = Order.objects.create(customer=Customer.objects.create(name="a"))
    client = Client()
    body = client.get(f"/order/{order.id}.json").content.decode()
    assert f'"id": "{order.id}"' in body, body
    page = client.get(f"/order/{order.id}").content.decode()
    assert f'data-order="{order.id}"' in page, page

    localized = engines["django"].from_string("{{ id }}").render({"id": order.id})
    assert localized == f"{order.id:,}", localized
    with open(os.environ["BODY"], "w") as file:
        file.write(f"{order.id} {body}")


run_cases(fetch, globals(), sys.argv[1:])
