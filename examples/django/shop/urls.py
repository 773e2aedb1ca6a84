from django.urls import path

from shop.views import order_json, order_page

urlpatterns = [path("order/<int:id>.json", order_json), path("order/<int:id>", order_page)]
