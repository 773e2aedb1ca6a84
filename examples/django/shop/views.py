from django.http import JsonResponse
from django.shortcuts import get_object_or_404, render

from shop.models import Order


def order_json(request, id):
    order = get_object_or_404(Order, id=id)
    # As texts: JavaScript rounds a number above 2^53.
    return JsonResponse({"id": str(order.id), "customer": str(order.customer_id)})


def order_page(request, id):
    return render(request, "order.html", {"order": get_object_or_404(Order, id=id)})
