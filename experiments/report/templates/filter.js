// Filter of the table of claims; the address keeps it, as in claims.html?paper=weaver&verdict=misses
const form = document.getElementById("filter");
const rows = [...document.querySelectorAll(".claims tbody tr")];
const texts = rows.map((row) => row.textContent.toLowerCase());

function apply() {
  const { text, ...exact } = Object.fromEntries(new FormData(form));
  const words = text.toLowerCase().split(/\s+/);
  let shown = 0;
  rows.forEach((row, i) => {
    const fits = words.every((word) => texts[i].includes(word)) &&
      Object.entries(exact).every(([name, value]) => !value || row.dataset[name] === value);
    row.hidden = !fits;
    shown += fits;
  });
  form.querySelector("output").textContent = `${shown} of ${rows.length}`;
}

for (const [name, value] of new URLSearchParams(location.search)) {
  if (form.elements[name]) form.elements[name].value = value;
}
form.hidden = false;
form.addEventListener("input", apply);
form.addEventListener("submit", (event) => event.preventDefault());
apply();
