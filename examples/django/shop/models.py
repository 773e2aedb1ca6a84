"""Customers and orders were there before idgen. Items came later."""

from django.db import models


class Customer(models.Model):
    name = models.TextField()


class Order(models.Model):
    customer = models.ForeignKey(Customer, models.CASCADE)
    watchers = models.ManyToManyField(Customer, related_name="watched")


class Item(models.Model):
    order = models.ForeignKey(Order, models.CASCADE)
    product = models.TextField()
