// Python bindings of accounts and reservations.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "serving/queue/account.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lumigrad {

void bind_serving_accounts(nb::module_& m) {
  using serving::Account;
  using serving::Reservation;
  using serving::Shortage;
  nb::class_<Shortage>(m, "Shortage")
      .def_ro("own", &Shortage::own)
      .def_ro("total", &Shortage::total)
      .def_ro("more", &Shortage::more);
  nb::class_<Reservation> reservation(m, "Reservation");
  nb::class_<Account>(m, "Account")
      .def(nb::init<std::int64_t, std::int64_t, std::int64_t>(), "limit"_a, "share"_a, "kept"_a)
      .def_prop_ro("taken", &Account::taken)
      .def("taken_by", &Account::taken_by, "tenant"_a)
      .def(
          "take",
          [](const std::shared_ptr<Account>& account, std::string tenant,
             std::int64_t amount) -> std::unique_ptr<Reservation> {
            auto taken = std::make_unique<Reservation>(account, std::move(tenant));
            return taken->change(amount) ? nullptr : std::move(taken);
          },
          "tenant"_a, "amount"_a, nb::sig("def take(self, tenant: str, amount: int) -> Reservation | None"))
      .def("tenants", [](const Account& account) {
        nb::dict tenants;
        for (const auto& [tenant, amount] : account.tenants()) tenants[nb::str(tenant.c_str())] = amount;
        return tenants;
      });
  reservation.def(nb::init<std::shared_ptr<Account>, std::string>(), "account"_a, "tenant"_a)
      .def_prop_ro("amount", &Reservation::amount)
      .def("change", &Reservation::change, "amount"_a, "Change the amount; what was reserved, if that is refused.")
      .def("grow", &Reservation::grow, "more"_a)
      .def("release", &Reservation::release, "Release the whole amount; twice does no harm.");
}

}  // namespace lumigrad
