"""An app with each kind of table: a user model, many-to-many fields, a through model, inheritance, other keys."""

import uuid

from django.contrib.auth.models import AbstractUser
from django.contrib.contenttypes.fields import GenericForeignKey
from django.contrib.contenttypes.models import ContentType
from django.db import models


class Named(models.Model):
    name = models.TextField()

    class Meta:
        abstract = True


class Member(AbstractUser):
    """The user model. Groups and permissions are many-to-many fields of AbstractUser."""

    mentor = models.ForeignKey("self", models.CASCADE, null=True)


class Team(Named):
    members = models.ManyToManyField(Member, through="Membership")
    rivals = models.ManyToManyField("self")


class YoungTeam(Team):
    class Meta:
        proxy = True


class Membership(models.Model):
    member = models.ForeignKey(Member, models.CASCADE)
    team = models.ForeignKey(Team, models.CASCADE)


class Venue(Named):
    pass


class Stadium(Venue):
    """Inherits its key from a table of its own."""

    seats = models.IntegerField()


class Tag(models.Model):
    slug = models.SlugField(primary_key=True)


class Match(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    venue = models.ForeignKey(Venue, models.CASCADE)
    tags = models.ManyToManyField(Tag)
    referees = models.ManyToManyField(Member, db_table="Referees")


class Note(models.Model):
    """About a row of any model."""

    content_type = models.ForeignKey(ContentType, models.CASCADE)
    object_id = models.BigIntegerField()
    about = GenericForeignKey()
