// A search for the flag `--data.frame-weights` asks for all its parts. Without this, the search reads leading dashes
// as "without", and any one part is enough.
{
  const value = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value");
  for (const field of document.querySelectorAll(".md-search__input")) {
    Object.defineProperty(field, "value", {
      get() {
        return value.get
          .call(this)
          .replace(/(^|\s)-+/g, "$1")
          .replace(/\w+(?:[.\-_]\w+)+/g, (flag) => `"${flag.replace(/[.\-_]/g, " ")}"`);
      },
      set(text) {
        value.set.call(this, text);
      },
    });
  }
}
