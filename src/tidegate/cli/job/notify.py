"""`tidegate notify`: do people hear of it when something fails?"""

from __future__ import annotations

import typer

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, open_project
from tidegate.cli.output import print_json, print_line
from tidegate.core.errors import UsageError

app = typer.Typer(
    no_args_is_help=True,
    help="Tell people when something fails.\n\nExample: tidegate notify test",
)


@app.command("test")
def send_test(
    project: ProjectFolder = HERE, profile: Profile = None, as_json: AsJson = False
) -> None:
    """Send a test message to the webhook and the command of the settings.

    Example: tidegate notify test
    """
    import uuid
    from datetime import UTC, datetime

    from tidegate.jobs.notices import Notice, NoticeEvent
    from tidegate.jobs.notifier import NotDelivered, Notifier

    opened = open_project(project, profile)
    channels = opened.settings.notify.channels
    if not channels:
        raise UsageError(
            "nobody is told anything: [notify] has neither webhook nor command",
            'set notify.webhook = "${SLACK_WEBHOOK:-}" in tidegate.toml',
        )
    notice = Notice(uuid.uuid4(), NoticeEvent.TEST, opened.name, "test", datetime.now(UTC))
    notifier, failed = Notifier(opened.context), {}
    for channel in channels:
        try:
            notifier.send(channel, notice.document)
        except NotDelivered as error:
            failed[channel] = error.message
    if as_json:
        print_json(
            {
                "id": notice.notice_id,
                "delivered": [one for one in channels if one not in failed],
                "failed": failed,
            }
        )
    else:
        for channel in channels:
            print_line(f"{channel}: {failed.get(channel, 'delivered')}")
    if failed:
        raise typer.Exit(1)
