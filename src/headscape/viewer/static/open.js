import { openPage } from "./viewer.js";

openPage(document.getElementById("viewer"));
