// The forms of Kubernetes' names, labels and label values. Pure.
//
// X_expected returns what was expected, as the end of a message ("…, expected X"); empty: the text has the form.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::api {

// The value of a label, or of a selector's: empty, or up to 63 letters, digits, '-', '_' and '.'.
std::string label_value_expected(std::string_view text);
// The key of a label or an annotation, a resource's name: the same, with up to 253 characters of a domain and a slash
// before it.
std::string qualified_name_expected(std::string_view text);
// The name of a container, a volume, a namespace: up to 63 lower-case letters, digits and dashes.
std::string dns_label_expected(std::string_view text);
// The name of a Secret, a ServiceAccount, …: the same with dots, up to 253.
std::string dns_subdomain_expected(std::string_view text);

// What is wrong with a label or an annotation, as a message; empty: nothing.
std::string label_fault(const std::string& name, const std::string& value);
std::string annotation_fault(const std::string& name);

}  // namespace lockstep::api
