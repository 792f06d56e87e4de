/* Settings: one native control for each setting of the chosen method, made from its description.
   The component's value is {methods: {name: [setting]}, method: name, values: {name: {setting: value}}}. */
const root = element.querySelector(".va");
const { methods, values } = props.value;
let method = props.value.method;

function tell(setting, value) {
  values[method] = { ...values[method], [setting.name]: value };
  props.value = { methods, method, values };
}

function choiceControl(setting, value) {
  const select = make("select", "select");
  for (const choice of setting.choices) select.append(new Option(phrase(String(choice)), String(choice)));
  select.value = String(value);
  select.addEventListener("change", () => tell(setting, setting.choices[select.selectedIndex]));
  return select;
}

function flagControl(setting, value) {
  const box = make("input");
  box.type = "checkbox";
  box.className = "flag-field";
  box.checked = value;
  box.addEventListener("change", () => tell(setting, box.checked));
  return box;
}

/* An empty or impossible number is not sent: the last good one stays, and the field shows it on leaving. */
function numberControl(setting, value) {
  const field = make("input", "number-field");
  field.type = "number";
  field.inputMode = "decimal";
  const step = setting.kind === "number" ? "any" : 1;   // `setting.step` is a hint, not a limit
  field.value = value ?? "";
  for (const [attribute, limit] of [["min", setting.minimum], ["max", setting.maximum], ["step", step]])
    if (limit != null) field.setAttribute(attribute, limit);
  field.addEventListener("input", () => {
    if (field.value !== "" && field.validity.valid) tell(setting, Number(field.value));
    field.setAttribute("aria-invalid", !field.validity.valid);
  });
  field.addEventListener("blur", () => {
    field.value = values[method]?.[setting.name] ?? "";
    field.setAttribute("aria-invalid", false);
  });
  return field;
}

const CONTROLS = { choice: choiceControl, flag: flagControl };

function show() {
  root.lang = language;
  root.replaceChildren(...(methods[method] ?? []).map(setting => {
    const label = make("label", "field"), control = (CONTROLS[setting.kind] ?? numberControl)(setting, values[method]?.[setting.name]);
    label.append(make("span", "label", phrase(setting.label)), control);
    label.title = phrase(setting.help);
    return label;
  }));
  root.hidden = !root.children.length;
}

document.addEventListener("vizattn:method", ({ detail: name }) => {
  method = name;
  props.value = { methods, method, values };
  show();
});
/* A link names a method and its settings. */
function readLink() {
  if (!(inLink("method") in methods)) return;
  method = inLink("method");
  const given = settingsInLink();
  for (const { name } of methods[method]) if (name in given) values[method] = { ...values[method], [name]: given[name] };
  props.value = { methods, method, values };
}
readLink();
onLanguage(show);
show();
