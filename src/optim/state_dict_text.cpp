#include "state_dict_text.hpp"

#include <nlohmann/json.hpp>

namespace mica::optim {

using Json = nlohmann::json;

std::string text_of(const OptimStateDict& dict) {
  Json json{{"state", Json::array()}, {"groups", Json::array()}};
  for (const auto& [key, state] : dict.state) {
    Json kinds = Json::array();
    for (const auto& [kind, tensor] : state.tensors) kinds.push_back(kind);
    json["state"].push_back({{"name", std::get<std::string>(key)}, {"kinds", kinds}, {"scalars", state.scalars}});
  }
  for (const OptimStateDict::Group& group : dict.groups) {
    Json names = Json::array();
    for (const ParameterKey& key : group.parameters) names.push_back(std::get<std::string>(key));
    json["groups"].push_back({{"parameters", names}, {"options", group.options}});
  }
  return json.dump();
}

OptimStateDict dict_without_tensors(const std::string& text) {
  const Json json = Json::parse(text);
  OptimStateDict dict;
  for (const Json& each : json["state"]) {
    ParameterState& state = dict.state[each["name"].get<std::string>()];
    for (const Json& kind : each["kinds"]) state.tensors[kind.get<std::string>()];
    each["scalars"].get_to(state.scalars);
  }
  for (const Json& each : json["groups"]) {
    OptimStateDict::Group& group = dict.groups.emplace_back();
    for (const Json& name : each["parameters"]) group.parameters.emplace_back(name.get<std::string>());
    each["options"].get_to(group.options);
  }
  return dict;
}

}  // namespace mica::optim
