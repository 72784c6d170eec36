// A list of any length with nodes for the visible rows only.
//
// The list never moves under its reader.  At its end it follows: new rows scroll into view.  Anywhere else it
// stays where it is; rows are then added at the end, and none is removed at the start (`following` tells the
// owner of the rows).

import { el } from "./dom.js";

const SPARE = 6; // rows above and below the visible ones

export class VirtualList {
  /**
   * given: `make` returns a row's node, `show(node, item)` fills it, `height` is that of a row in pixels, `label`
   * names the list; `selected(item)` is called with each new selection, `moved(following)` when that changes.
   * follows: false for a list that begins at its top.
   */
  constructor({ make, show, height, label, selected, moved, follows = true }) {
    Object.assign(this, { make, show, height, selected, moved, follows });
    this.items = [];
    this.following = follows;
    this.chosen = null;
    this.nodes = [];
    this.first = -1;
    this.space = el("div", { class: "space" });
    this.root = el("div", { class: "list", tabindex: 0, role: "listbox", "aria-label": label }, this.space);
    this.root.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.root.addEventListener("click", (event) => this.clicked(event));
    new ResizeObserver(() => this.draw(true)).observe(this.root);
  }

  /** Replace the items; one that stays is the same object. */
  set(items) {
    this.items = items;
    this.draw(true);
  }

  setHeight(height) {
    if (height === this.height) return;
    const at = Math.floor(this.root.scrollTop / this.height);
    this.height = height;
    this.draw(true);
    if (!this.following) this.root.scrollTop = at * height;
  }

  draw(again = false) {
    const { root, height, items } = this;
    const whole = `${items.length * height}px`;
    if (this.space.style.height !== whole) this.space.style.height = whole;
    if (this.following) root.scrollTop = items.length * height;
    const sight = root.clientHeight;
    const top = Math.min(root.scrollTop, Math.max(0, items.length * height - sight));
    const first = Math.max(0, Math.floor(top / height) - SPARE);
    const wanted = Math.min(items.length - first, Math.ceil(sight / height) + 2 * SPARE);
    if (!again && first === this.first && wanted === this.nodes.length) return;
    this.first = first;
    while (this.nodes.length > Math.max(0, wanted)) this.nodes.pop().remove();
    while (this.nodes.length < wanted) {
      const node = this.make();
      node.setAttribute("role", "option");
      this.nodes.push(node);
      this.space.append(node);
    }
    this.nodes.forEach((node, at) => this.place(node, first + at));
  }

  place(node, index) {
    const item = this.items[index];
    const where = `translateY(${index * this.height}px)`;
    if (node.style.transform !== where) node.style.transform = where;
    node.index = index;
    this.show(node, item);
    node.classList.toggle("odd", index % 2 === 1);
    const chosen = item === this.chosen;
    node.classList.toggle("chosen", chosen);
    node.setAttribute("aria-selected", chosen);
  }

  scrolled() {
    const { root } = this;
    const end = root.scrollTop + root.clientHeight >= root.scrollHeight - this.height;
    // With a selection, a reader who comes to the end reads on there.
    if (this.follows && !(end && this.chosen)) this.follow(end);
    this.draw();
  }

  follow(on) {
    if (on === this.following) return;
    this.following = on;
    this.moved?.(on);
    if (on) this.draw(true);
  }

  clicked(event) {
    const node = event.target.closest("[role=option]");
    if (node && this.space.contains(node)) this.choose(this.items[node.index]);
  }

  /** Select an item, null for none; the list stays where it is from now on. */
  choose(item) {
    if (item && this.follows) this.follow(false);
    this.chosen = item;
    this.draw(true);
    this.selected?.(item);
  }

  reveal(index) {
    const { root, height } = this;
    if (index * height < root.scrollTop) root.scrollTop = index * height;
    else if ((index + 1) * height > root.scrollTop + root.clientHeight) {
      root.scrollTop = (index + 1) * height - root.clientHeight;
    }
  }

  /** Move the selection by a number of rows. */
  step(by) {
    if (!this.items.length) return;
    const now = this.chosen === null ? -1 : this.items.indexOf(this.chosen);
    const last = this.items.length - 1;
    const start = now === -1 ? (by > 0 && !this.following ? this.first + SPARE - 1 : last + 1) : now;
    const index = Math.max(0, Math.min(last, start + by));
    this.choose(this.items[index]);
    this.reveal(index);
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.root.clientHeight / this.height) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "End") {
      if (this.follows) {
        this.choose(null);
        this.follow(true);
      } else this.step(Infinity);
    } else if (event.key in steps) this.step(steps[event.key]);
    else return;
    event.preventDefault();
  }
}
