"use strict";
document.querySelectorAll("table").forEach((table) => {
  const heads = table.querySelectorAll("th");
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const falls = head.getAttribute("aria-sort") !== "descending";
    const body = table.querySelector("tbody");
    const key = (row) => row.cells[column].dataset.value;
    const order = (a, b) => {
      const [x, y] = [key(a), key(b)];
      const number = head.classList.contains("name") ? NaN : Number(x) - Number(y);
      return Number.isNaN(number) ? x.localeCompare(y) : number;
    };
    body.append(...[...body.rows].sort((a, b) => (falls ? -1 : 1) * order(a, b)));
    heads.forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", falls ? "descending" : "ascending");
  }));
  heads.forEach((head) => {
    head.tabIndex = 0;
    head.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      head.click();
    });
  });
});
