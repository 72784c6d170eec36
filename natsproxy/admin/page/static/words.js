// The keywords of rules, from the API, fetched once.

import { ask } from "./api.js";

let fetched = null;

/** Return the keywords by sort: kinds, selectors, gates, roles. */
export function words() {
  fetched ??= ask("GET", "/v1/words").catch((error) => {
    fetched = null;
    throw error;
  });
  return fetched;
}
