//! Exports the spans of traces, if an exporter is configured.

#[cfg(feature = "otel")]
pub(crate) use self::exporting::SpansComponent;
#[cfg(not(feature = "otel"))]
pub(crate) use self::untold::SpansComponent;

#[cfg(feature = "otel")]
mod exporting {
    use guildhall_actors::telemetry::span;

    use crate::{
        events::{SpansExportedElsewhere, emit},
        logging::Secrets,
        otel::{EndpointError, Exporter},
        settings::Settings,
    };

    /// The exporter to a collector, if the settings name one.
    #[derive(Debug)]
    pub(crate) struct SpansComponent(Option<Exporter>);

    impl SpansComponent {
        /// Starts the exporter. No span contains any of the secrets.
        pub(crate) fn start(settings: &Settings, secrets: Secrets) -> Result<Self, EndpointError> {
            let exporter = Exporter::start(&settings.telemetry, secrets)?;
            if let Some(exporter) = &exporter
                && !span::listen(exporter.listener())
            {
                emit(SpansExportedElsewhere);
            }
            Ok(Self(exporter))
        }

        /// Sends the pending spans.
        pub(crate) async fn finish(self) {
            if let Some(exporter) = self.0 {
                exporter.finish().await;
            }
        }
    }
}

#[cfg(not(feature = "otel"))]
mod untold {
    use std::convert::Infallible;

    use crate::{logging::Secrets, settings::Settings};

    /// Exports nothing: the settings do not allow a collector without the feature.
    #[derive(Debug)]
    pub(crate) struct SpansComponent;

    impl SpansComponent {
        /// Infallible here; with the feature it may fail.
        pub(crate) fn start(_: &Settings, _: Secrets) -> Result<Self, Infallible> {
            Ok(Self)
        }

        pub(crate) async fn finish(self) {}
    }
}
