() => {
    // Colours: the visitor's choice if there is one, else the system's.
    const root = document.documentElement;
    const remembered = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
    const remember = (name, value) => { try { localStorage.setItem(name, value); } catch { /* private window */ } };
    const dark = () => document.body.classList.contains("dark");
    const show = (isDark) => {
        document.body.classList.toggle("dark", isDark);
        root.style.colorScheme = isDark ? "dark" : "light";
    };
    const chosen = remembered("studio-colours");
    show(chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);

    const area = (id) => document.querySelector(`#${id} textarea`);

    window.studio = {
        switchColours() {
            show(!dark());
            remember("studio-colours", dark() ? "dark" : "light");
        },
        setLanguage(language, kept) {
            root.lang = language === "zh" ? "zh-CN" : "en";
            // A cookie, so that the page already arrives in this language the next time.
            if (kept) document.cookie = `studio-language=${language}; Path=/; Max-Age=31536000; SameSite=Lax`;
            return language;
        },
        // Whether the visitor sees this part of the page.
        isShown(id) {
            return Boolean(document.getElementById(id)?.offsetParent);
        },
        // The text of a box with something put in at the cursor, or around what is selected.
        insert(id, text, before, after) {
            const box = area(id);
            const start = box ? box.selectionStart : text.length, end = box ? box.selectionEnd : text.length;
            const changed = text.slice(0, start) + before + text.slice(start, end) + after + text.slice(end);
            const cursor = end + before.length + (start === end ? 0 : after.length);
            if (box) setTimeout(() => { box.focus(); box.setSelectionRange(cursor, cursor); }, 60);
            return changed;
        },
    };

    // Ctrl+Enter (or Command+Enter) in any box of a tab presses that tab's main button.
    document.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
        const panel = event.target.closest?.('[role="tabpanel"]');
        const button = panel?.querySelector("button.main-button");
        if (button && !button.disabled) { event.preventDefault(); button.click(); }
    });

    // The boxes for a clip take videos too: Gradio goes by the kind of the file, the studio by the sound in it.
    const VIDEO = /\.(mp4|m4v|mov|webm|mkv|avi|3gp|ts|wmv|aif|amr|caf)$/i;
    const asSound = (file) => file.type.startsWith("audio/")
        || !(file.type.startsWith("video/") || VIDEO.test(file.name))
        ? file : new File([file], file.name, { type: "audio/x-video" });
    const clipInput = (event) => event.target.closest?.('[id$="-reference"]')?.querySelector("input[type=file]");
    const fill = (input, files) => {
        const given = new DataTransfer();
        for (const file of files) given.items.add(asSound(file));
        input.files = given.files;
    };
    document.addEventListener("change", (event) => {
        const input = clipInput(event);
        if (input && input === event.target) fill(input, [...input.files]);
    }, true);
    document.addEventListener("drop", (event) => {
        const input = clipInput(event), files = [...(event.dataTransfer?.files ?? [])];
        if (!input || files.every((file) => asSound(file) === file)) return;
        event.preventDefault();
        event.stopPropagation();
        event.target.dispatchEvent(new DragEvent("dragleave", { bubbles: true }));
        fill(input, files);
        input.dispatchEvent(new Event("change", { bubbles: true }));
    }, true);
    const widen = () => document.querySelectorAll('[id$="-reference"] input[type=file]').forEach((input) => {
        if (input.accept && !input.accept.includes("video/")) input.accept += ",video/*,.mkv,.amr,.caf";
    });

    // What changes by itself is read out.
    const announce = () => document.querySelectorAll(".prose.announced:not([role])").forEach((node) => {
        node.setAttribute("role", "status");
        node.setAttribute("aria-live", "polite");
    });

    // Gradio's own messages, in the visitor's language and without its file types and codes.
    const SENTENCES = "@SENTENCES@";
    const ABOUT = [
        ["toast_table", /file type.*\.srt/is],
        ["toast_voice", /file type.*\.safetensors/is],
        ["toast_file", /file type|not allowed/i],
        ["toast_size", /exceed|too large|size|413/i],
        ["toast_connection", /connect|network|fetch|server|连接/i],
    ];
    const translate = () => document.querySelectorAll(".toast-message-text:not([data-said])").forEach((node) => {
        const language = root.lang.startsWith("zh") ? "zh" : "en";
        const own = node.textContent.trim().startsWith("⚠") && "toast_own";  // in the visitor's language already
        const about = own || (ABOUT.find(([, pattern]) => pattern.test(node.textContent))?.[0] ?? "toast_other");
        node.dataset.said = about;
        if (!own) node.textContent = SENTENCES[about][language];
        const title = node.closest(".toast-body")?.querySelector(".toast-title")?.firstChild;
        if (title) title.textContent = SENTENCES.toast_title[language];
    });

    const look = () => { announce(); translate(); widen(); };
    look();
    new MutationObserver(look).observe(document.body, { childList: true, subtree: true });
}
